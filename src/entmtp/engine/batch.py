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

from entmtp.decode import (
    Acceptance,
    Acceptor,
    Draw,
    History,
    Past,
    Record,
    Sampler,
    Sampling,
    TokenLogprob,
    logprobs_of,
    verify,
)
from entmtp.engine.stats import StepSeconds
from entmtp.heads import DraftHeads
from entmtp.target.cache import KVCache
from entmtp.target.model import TargetModel
from entmtp.trees import Tree, TreeBuffers, tree_buffers


class Choosing(NamedTuple):
    """How a running sequence's tokens are chosen, and what is told of them."""

    sampling: Sampling
    num_logprobs: int | None = None


class _Row(NamedTuple):
    """A running sequence, as far as the choice of its tokens goes."""

    choosing: Choosing
    record: Record


class FirstToken(NamedTuple):
    """What the prompt is followed by."""

    token_id: int
    logprobs: tuple[TokenLogprob, ...] | None


class StepOutput(NamedTuple):
    """One step's outcome on the host."""

    token_ids: list[list[int]]
    """Of each sequence: its accepted drafts and the bonus token"""
    seconds: StepSeconds
    logprobs: Sequence[tuple[TokenLogprob, ...] | None]
    """Of each sequence's `token_ids`; None where they were not asked for"""


class Batch:
    """Rows of the caches and the tensors between two steps. Owns all device state of a run."""

    def __init__(
        self,
        target: TargetModel,
        heads: DraftHeads | None,
        acceptor: Acceptor,
        min_rows: int,
    ) -> None:
        self._target = target
        self._heads = heads
        self._acceptor = acceptor
        self._min_rows = min_rows
        self._cache: KVCache | None = None
        self._heads_cache: KVCache | None = None
        self._rows: list[_Row] = []
        self._context: list[torch.Tensor] = []  # [H] of each sequence: what its heads draft from

    @property
    def size(self) -> int:
        return len(self._rows)

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each running sequence."""
        return [] if self._cache is None else self._cache.lengths[: self.size]

    @property
    def num_cache_bytes(self) -> int:
        caches = (self._cache, self._heads_cache)
        return sum(cache.num_bytes for cache in caches if cache is not None)

    def join(self, prompt_ids: Sequence[int], choosing: Choosing, capacity: int) -> FirstToken:
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
        joined = _Row(choosing, Record.of(prompt_ids))
        first = self._first_token(joined, self._target.logits(hidden[:, -1]))
        self._rows.append(joined)
        if self._heads is not None:
            self._context.append(context)
        self._regroup()
        return first

    def _first_token(self, row: _Row, logits: torch.Tensor) -> FirstToken:  # [1, V]
        device, most = self._target.device, row.choosing.num_logprobs
        sampler = Sampler([row.choosing.sampling], device)
        position = torch.tensor([row.record.num_prompt], device=device)
        token = sampler(logits, position, Past(self._history(sampler, [row]), ()))
        token_id = int(token)
        row.record.ids.append(token_id)
        if most is None:
            return FirstToken(token_id, None)
        told = logprobs_of(logits[:, None], token[:, None], most).rows([[token_id]], [most])
        return FirstToken(token_id, told[0])

    def _history(self, sampler: Sampler, rows: Sequence[_Row]) -> History | None:
        if not sampler.looks_back:
            return None
        return History.of([row.record for row in rows], self._target.device)

    def leave(self, row: int) -> None:
        """Free a row at once; the last sequence moves into it."""
        last = self.size - 1
        for cache in (self._cache, self._heads_cache):
            if cache is not None:
                if row != last:
                    cache.copy_row(last, row)
                cache.truncate(last, 0)
        _close_gap(self._rows, row)
        _close_gap(self._context, row)
        if self.size:
            self._regroup()
        else:
            self.clear()

    def clear(self) -> None:
        """Forget all sequences, and whatever a step that failed has left behind."""
        self._cache = self._heads_cache = None
        self._rows, self._context = [], []

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
        history = self._history(self._sampler, self._rows)
        draw = Draw(logits, self._sampler, first, history, self._num_logprobs)
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
        said = [row[1 : 1 + row[0]] for row in host]
        for row, token_ids in zip(self._rows, said, strict=True):
            row.record.ids.extend(token_ids)
        return StepOutput(said, seconds, self._logprobs(acceptance, said))

    def _logprobs(
        self, acceptance: Acceptance, said: Sequence[Sequence[int]]
    ) -> Sequence[tuple[TokenLogprob, ...] | None]:
        if acceptance.logprobs is None:
            return [None] * self.size
        wanted = [row.choosing.num_logprobs for row in self._rows]
        return acceptance.logprobs.rows(said, wanted)

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

    def _open_row(self, row: int, capacity: int) -> tuple[KVCache, KVCache | None]:
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
        asked = [row.choosing for row in self._rows]
        self._sampler = Sampler([one.sampling for one in asked], self._target.device)
        wanted = [one.num_logprobs for one in asked if one.num_logprobs is not None]
        self._num_logprobs = max(wanted, default=None)


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
