"""The sequences that step together: their cache rows, their contexts, one tree decode step.

Knows: target, heads, caches, acceptance. Does not know: queues, events, text.

Running sequences occupy the first rows of the caches without a gap: where one leaves, the last
one moves in. A sequence's result does not depend on the others in its step.

Dimension key: B running sequences · T tree slots · D depth · H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch

from entmtp.decode import Acceptor, Draw, Sampling, make_sampler, verify
from entmtp.engine.stats import StepSeconds
from entmtp.heads import DraftHeads
from entmtp.target.cache import KVCache
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainCache
from entmtp.trees import Tree, TreeBuffers, tree_buffers

MakeAcceptor = Callable[[Sequence[Sampling], torch.device], Acceptor]


class StepOutput(NamedTuple):
    """One step's outcome on the host."""

    token_ids: list[list[int]]
    """Of each sequence: its accepted drafts and the bonus token"""
    seconds: StepSeconds


class Batch:
    """Rows of the caches and the tensors between two steps. Owns all device state of a run."""

    def __init__(
        self,
        target: TargetModel,
        heads: DraftHeads | None,
        make_acceptor: MakeAcceptor,
        min_rows: int,
    ) -> None:
        self._target = target
        self._heads = heads
        self._make_acceptor = make_acceptor
        self._min_rows = min_rows
        self._cache: KVCache | PlainCache | None = None
        self._heads_cache: KVCache | None = None
        self._sampling: list[Sampling] = []
        self._context: list[torch.Tensor] = []  # [H] of each sequence: what its heads draft from

    @property
    def size(self) -> int:
        return len(self._sampling)

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each running sequence."""
        return [] if self._cache is None else self._cache.lengths[: self.size]

    @property
    def num_cache_bytes(self) -> int:
        caches = (self._cache, self._heads_cache)
        return sum(cache.num_bytes for cache in caches if cache is not None)

    def join(self, prompt_ids: Sequence[int], sampling: Sampling, capacity: int) -> int:
        """Prefill a sequence into the next row; its first token.

        Args:
            capacity: cache rows that it is likely to need; more are found when it needs them.
        """
        row = self.size
        view, heads_view = self._open_row(row, capacity)
        ids = torch.tensor([prompt_ids], device=self._target.device)
        for hidden in self._target.prefill(ids, view):
            if self._heads is not None:
                context = self._heads.observe(hidden, heads_view, [hidden.shape[1]])[0]
        sampler = make_sampler([sampling], self._target.device)
        position = torch.tensor([len(prompt_ids)], device=self._target.device)
        token = int(sampler(self._target.logits(hidden[:, -1]), position))
        self._sampling.append(sampling)
        if self._heads is not None:
            self._context.append(context)
        self._regroup()
        return token

    def leave(self, row: int) -> None:
        """Free a row at once; the last sequence moves into it."""
        last = self.size - 1
        for cache in (self._cache, self._heads_cache):
            if cache is not None:
                if row != last:
                    cache.copy_row(last, row)
                cache.truncate(last, 0)
        _close_gap(self._sampling, row)
        _close_gap(self._context, row)
        if self.size:
            self._regroup()
        else:
            self.clear()

    def clear(self) -> None:
        """Forget all sequences, and whatever a step that failed has left behind."""
        self._cache = self._heads_cache = None
        self._sampling, self._context = [], []

    def step(self, trees: Sequence[Tree], roots: Sequence[int]) -> StepOutput:
        """Draft, verify, accept, keep: one tree decode step of all running sequences."""
        assert self._cache is not None, "step needs a running sequence"
        started = perf_counter()
        device = self._target.device
        buffers = tree_buffers(tuple(trees), device, self._min_rows)
        root_ids = torch.tensor(roots, device=device)
        cache = self._cache.view(0, self.size)
        prepared = perf_counter()
        draft_ids = self._draft(root_ids, buffers)
        drafted = perf_counter()
        hidden = verify(self._target, cache, draft_ids, buffers)
        verified = perf_counter()
        logits = _Timed(self._target.logits)
        first = torch.tensor(cache.lengths, device=device) + 1
        draw = Draw(logits, self._sampler, first)
        acceptance = self._acceptor(hidden, draft_ids, buffers, draw)
        counts = acceptance.num_accepted + 1
        # The step's only copy to the host.
        host = torch.cat([counts[:, None], acceptance.token_ids], 1).tolist()
        num_kept = [row[0] for row in host]
        cache.keep(acceptance.slots, num_kept)
        kept = perf_counter()
        self._observe(hidden, acceptance.slots, num_kept)
        ended = perf_counter()
        seconds = StepSeconds(
            draft=drafted - prepared + ended - kept,
            verify=verified - drafted + logits.seconds,
            host=prepared - started + kept - verified - logits.seconds,
        )
        return StepOutput([row[1 : 1 + row[0]] for row in host], seconds)

    def _draft(self, root_ids: torch.Tensor, buffers: TreeBuffers) -> torch.Tensor:
        """Draft ids `[B, T]`; slots that no level fills carry the root's id, as padding."""
        if buffers.depth == 0 or self._heads is None:
            return root_ids[:, None].expand(-1, buffers.num_slots)
        return self._heads.draft(torch.stack(self._context), root_ids, buffers).ids

    def _observe(self, hidden: torch.Tensor, slots: torch.Tensor, counts: Sequence[int]) -> None:
        """Give the heads the hidden states of what was kept."""
        if self._heads is None:
            return
        batch = torch.arange(self.size, device=hidden.device)[:, None]
        kept = hidden[batch, slots[:, : max(counts)]]
        view = None if self._heads_cache is None else self._heads_cache.view(0, self.size)
        self._context = list(self._heads.observe(kept, view, counts))

    def _open_row(self, row: int, capacity: int) -> tuple[KVCache | PlainCache, KVCache | None]:
        """Views of one empty row in each cache, allocated or enlarged as needed."""
        if self._cache is None:
            self._cache = self._target.new_cache(1, capacity)
            if self._heads is not None:
                self._heads_cache = self._heads.new_cache(1, capacity)
        for cache in (self._cache, self._heads_cache):
            if cache is not None:
                if row == cache.batch_size:
                    cache.add_row()
                cache.reserve(capacity)
                # A failed prefill may have left something behind.
                cache.truncate(row, 0)
        heads_view = None if self._heads_cache is None else self._heads_cache.view(row, row + 1)
        return self._cache.view(row, row + 1), heads_view

    def _regroup(self) -> None:
        """Rebuild what depends on who is running."""
        self._sampler = make_sampler(self._sampling, self._target.device)
        self._acceptor = self._make_acceptor(self._sampling, self._target.device)


def _close_gap(items: list[Any], row: int) -> None:
    if items:
        items[row] = items[-1]
        items.pop()


class _Timed:
    """A function with the time spent in it."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._function = function
        self.seconds = 0.0

    def __call__(self, argument: torch.Tensor) -> torch.Tensor:
        started = perf_counter()
        result = self._function(argument)
        self.seconds += perf_counter() - started
        return result
