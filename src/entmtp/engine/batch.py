"""The sequences that step together: their cache rows, their contexts, one tree decode step.

Knows: target, heads, caches, acceptance. Does not know: queues, events, text.

Running sequences occupy the first rows of the caches without a gap: where one leaves, the last
one moves in. A sequence's result does not depend on the others in its step.

Dimension key: B running sequences · T tree slots · D depth · H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Any, NamedTuple

import torch

from entmtp.decode import (
    Acceptance,
    Acceptor,
    Draw,
    HostAcceptance,
    Record,
    RootSignals,
    Sampler,
    TokenLogprob,
    copy_to_host,
    node_positions,
    signals_on_host,
    verify,
)
from entmtp.decode.logprobs import Logprobs
from entmtp.engine.choosing import Choosing, FirstToken, Row, first_token, history_of
from entmtp.engine.drafting import Drafter
from entmtp.engine.stats import StepSeconds
from entmtp.engine.timed import Timed
from entmtp.engine.unseen import Unseen
from entmtp.heads import DraftHeads
from entmtp.scheduler import StepChoice
from entmtp.target.cache import KVCache, Slots
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainCache
from entmtp.trees import Part, Tree, int_tensor


class StepOutput(NamedTuple):
    """One step's outcome on the host."""

    token_ids: list[list[int]]
    """Of each sequence: its accepted drafts and the bonus token"""
    trees: list[Tree | Part]
    """Verified, of each sequence"""
    num_rows: int
    """Verified in all, padding included"""
    root_signals: list[RootSignals]
    """Of each sequence's bonus token, the next root, if somebody reads them"""
    logprobs: Sequence[tuple[TokenLogprob, ...] | None]
    """Of each sequence's `token_ids`; None where they were not asked for"""
    seconds: StepSeconds


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
        self._device, self._dtype = target.device, target.dtype  # asking a model takes its time
        self._heads = heads
        self._acceptor = acceptor
        self._drafter = Drafter(heads, min_rows)
        self._cache: KVCache | PlainCache | None = None
        self._heads_cache: KVCache | None = None
        self._rows: list[Row] = []
        self._context: torch.Tensor | None = None  # [B, H] what the heads draft from
        self._unseen = Unseen()  # what was kept, and the heads have not looked at yet

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

    def at_work(self) -> AbstractContextManager[None]:
        """What `join` and `step` are to run in."""
        return self._target.at_work()

    def warm_up(self, trees: Sequence[Tree]) -> None:
        """Make steps with these trees ready, where that is more than the target's own affair."""
        del trees

    def join(
        self, prompt_ids: Sequence[int], choosing: Choosing, capacity: int, reads_root: bool
    ) -> FirstToken:
        """Prefill a sequence into the next row; its first token, the root of its first step.

        Args:
            capacity: cache rows that it is likely to need; more are found when it needs them.
            reads_root: whether the root's signals are wanted.
        """
        self._catch_up()
        row = self.size
        view, heads_view = self._open_row(row, capacity)
        ids = torch.tensor([prompt_ids], device=self._device)
        for hidden in self._target.prefill(ids, view):
            if self._heads is not None:
                context = self._heads.observe(self._seen(hidden), heads_view, [hidden.shape[1]])
        joined = Row(choosing, Record.of(prompt_ids))
        logits = self._target.logits(hidden[:, -1])
        first = first_token(joined, logits, reads_root, self._target)
        self._rows.append(joined)
        if self._heads is not None:
            running = () if self._context is None else (self._context,)
            self._context = torch.cat([*running, context])
        self._regroup()
        return first

    def leave(self, row: int) -> None:
        """Free a row at once; the last sequence moves into it."""
        if self.size > 1:  # else nobody stays who would draft
            self._catch_up()
        last = self.size - 1
        for cache in (self._cache, self._heads_cache):
            if cache is not None:
                if row != last:
                    cache.copy_row(last, row)
                cache.truncate(last, 0)
        if self._context is not None:
            places = list(range(self.size))
            _close_gap(places, row)
            self._context = self._context[places]
        _close_gap(self._rows, row)
        if self.size:
            self._regroup()
        else:
            self.clear()

    def clear(self) -> None:
        """Forget all sequences, and whatever a step that failed has left behind."""
        self._cache = self._heads_cache = None
        self._rows, self._context = [], None
        self._unseen.clear()

    def step(self, choices: Sequence[StepChoice], roots: Sequence[int]) -> StepOutput:
        """Draft, verify, accept, keep: one tree decode step of all running sequences."""
        assert self._cache is not None, "step needs a running sequence"
        started = perf_counter()
        device = self._device
        cache = self._cache.view(0, self.size)
        if any(choice.widest.depth > 0 for choice in choices):
            self._catch_up()
        caught_up = perf_counter()
        draft = self._drafter(self._context, int_tensor(roots, device), choices)
        drafted = perf_counter()
        positions = node_positions(cache.lengths, draft.buffers)
        hidden = verify(self._target, cache, draft.ids, positions, draft.buffers)
        verified = perf_counter()
        reads_root = any(choice.reads_root for choice in choices)
        logits = Timed()
        draw = self._draw(positions, reads_root, logits)
        acceptance = self._acceptor(hidden, draft.ids, draft.buffers, draw)
        said, root_signals = self._on_host(acceptance, reads_root)
        num_kept = [len(token_ids) for token_ids in said]
        cache.keep(acceptance.slots, num_kept)
        kept = perf_counter()
        self._observe(hidden, acceptance.slots, num_kept)
        ended = perf_counter()
        seconds = StepSeconds(
            draft=draft.heads_seconds + caught_up - started + ended - kept,
            verify=verified - drafted + logits.seconds,
            host=drafted - caught_up - draft.heads_seconds + kept - verified - logits.seconds,
        )
        for row, token_ids in zip(self._rows, said, strict=True):
            row.record.ids.extend(token_ids)
        return StepOutput(
            said,
            draft.trees,
            draft.ids.numel(),
            root_signals,
            self._logprobs(acceptance.logprobs, said),
            seconds,
        )

    def _draw(self, positions: torch.Tensor, reads_root: bool, timed: Timed) -> Draw:
        """The target's choice behind the nodes at `positions` `[B, T]`."""
        largest = None if reads_root else self._largest
        return Draw(
            timed(self._target.logits),
            self._sampler,
            positions,
            history_of(self._sampler, self._rows, self._device),
            self._num_logprobs,
            self._target.rows_at_once,
            largest and timed(largest),
        )

    def _on_host(
        self, found: Acceptance | HostAcceptance, reads_root: bool
    ) -> tuple[list[list[int]], list[RootSignals]]:
        """What each sequence says, and the signals of its next root."""
        logits, signals = found.last_logits if reads_root else None, self._target.root_signals
        if isinstance(found, HostAcceptance):
            return found.token_ids, signals_on_host(logits, self.size, signals)
        # The step's only copy to the host, unless somebody wants to see the draft.
        tables = (found.num_accepted[:, None], found.token_ids)
        rows, root_signals = copy_to_host(tables, logits, signals)
        return [row[1 : 2 + row[0]] for row in rows], root_signals

    def _logprobs(
        self, logprobs: Logprobs | None, said: Sequence[Sequence[int]]
    ) -> Sequence[tuple[TokenLogprob, ...] | None]:
        if logprobs is None:
            return [None] * self.size
        wanted = [row.choosing.num_logprobs for row in self._rows]
        return logprobs.rows(said, wanted)

    def _observe(self, hidden: torch.Tensor, slots: Slots, counts: Sequence[int]) -> None:
        """Keep for the heads the hidden states of what was kept, or show them at once."""
        if self._heads is None:
            return
        kept = self._seen(_kept(hidden, slots, max(counts)))
        if min(counts) < max(counts):
            assert not self._unseen.num_tokens, "somebody drafted, so the heads have caught up"
            self._look(kept, counts)
            return
        self._unseen.add(kept)
        if self._unseen.is_full:
            self._catch_up()

    def _catch_up(self) -> None:
        """Let the heads see what waits for them."""
        hidden = self._unseen.take()
        if hidden is not None:
            self._look(hidden, [hidden.shape[1]] * self.size)

    def _look(self, hidden: torch.Tensor, counts: Sequence[int]) -> None:
        """Show the heads the first `counts[b]` tokens of each row of `hidden` `[B, A, H]`."""
        assert self._heads is not None, "nobody keeps it for nobody"
        view = None if self._heads_cache is None else self._heads_cache.view(0, self.size)
        self._context = self._heads.observe(hidden, view, counts)

    def _seen(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states in the format that the heads compute in, whatever the runtime's is."""
        has_kernels = self._heads is not None and self._heads.kernels is not None
        return hidden.float() if has_kernels else hidden.to(self._dtype)

    def _open_row(self, row: int, capacity: int) -> tuple[KVCache | PlainCache, KVCache | None]:
        """Views of one empty row in each cache, allocated or enlarged as needed."""
        if self._cache is None:
            self._cache = self._target.new_cache(1, capacity)
            self._heads_cache = self._new_heads_cache(capacity)
        for cache in (self._cache, self._heads_cache):
            if cache is not None:
                if row == cache.batch_size:
                    cache.add_row()
                cache.reserve(capacity)
                # A failed prefill may have left something behind.
                cache.truncate(row, 0)
        heads_view = None if self._heads_cache is None else self._heads_cache.view(row, row + 1)
        return self._cache.view(row, row + 1), heads_view

    def _new_heads_cache(self, capacity: int) -> KVCache | None:
        return None if self._heads is None else self._heads.new_cache(1, capacity)

    def _regroup(self) -> None:
        """Rebuild what depends on who is running."""
        asked = [row.choosing for row in self._rows]
        samplings, noise = [one.sampling for one in asked], self._target.gumbel_noise
        self._sampler = Sampler(samplings, self._device, noise)
        wanted = [one.num_logprobs for one in asked if one.num_logprobs is not None]
        self._num_logprobs = max(wanted, default=None)
        is_all = self._sampler.takes_largest and not wanted
        self._largest = self._target.largest_logits if is_all else None


def _close_gap(items: list[Any], row: int) -> None:
    items[row] = items[-1]
    items.pop()


def _kept(hidden: torch.Tensor, slots: Slots, most: int) -> torch.Tensor:
    """Hidden states `[B, most, H]` of the first slots that were kept."""
    if most == 1:  # of each sequence the root alone, which is the first
        return hidden[:, :1]
    if not isinstance(slots, torch.Tensor):
        slots = int_tensor(slots, hidden.device)
    places = slots[:, :most]
    if len(hidden) == 1:
        return hidden.index_select(1, places[0])
    return hidden[torch.arange(len(places), device=places.device)[:, None], places]
