"""A tree decode step as a handful of captured graphs and one copy to the host.

Knows: which parts of a step are graphs, and what tells two graphs apart. Does not know: what the
parts compute (`decode`, `heads`, `target`), queues, text.

The parts, in order: topology and levels of the draft (`graph_drafting`), the target's forward
(`target.runtimes.graphs`), the walk, and what settles its outcome: cache rows and the heads'
contexts. The walk is not captured where it looks back at the text or tells log-probabilities; it
then runs kernel by kernel, and reads the host as little. All is launched before the host waits for
the one copy, into pinned memory.

Dimension key: B running sequences · T tree slots · D depth · A = D + 1 · H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from entmtp.decode import (
    Acceptance,
    Acceptor,
    Draw,
    ExactAcceptor,
    HostAcceptance,
    Sampler,
    Sampling,
    packed,
    unpacked,
)
from entmtp.decode.logprobs import Logprobs
from entmtp.engine.batch import Batch, StepOutput
from entmtp.engine.choosing import Choosing, history_of
from entmtp.engine.drafting import DraftedTrees
from entmtp.engine.graph_drafting import GraphDrafter
from entmtp.engine.stats import StepSeconds
from entmtp.heads import DraftHeads
from entmtp.scheduler import Signals, StaticPolicy, StepChoice
from entmtp.target.cache import KVCache
from entmtp.target.masks import causal_among, placed_mask
from entmtp.target.runtimes.capture import Captures, Tensors, sent
from entmtp.target.runtimes.graphs import GraphsTarget, first_capacity
from entmtp.target.runtimes.static_cache import Memories, StaticCache
from entmtp.trees import Tree

_WARM_SAMPLINGS = (Sampling(), Sampling(temperature=1.0, seed=0))


class _Outcome(NamedTuple):
    """What the walk found, on the device."""

    rows: torch.Tensor  # [B, 1 + A] counts and tokens, or [B, 1 + A + 2] with the root's signals
    slots: torch.Tensor  # [B, A]
    counts: torch.Tensor  # [B] rows to keep
    logprobs: Logprobs | None = None


class GraphBatch(Batch):
    """A `Batch` on a `GraphsTarget`."""

    def __init__(
        self,
        target: GraphsTarget,
        heads: DraftHeads | None,
        acceptor: Acceptor,
        min_rows: int,
    ) -> None:
        super().__init__(target, heads, acceptor, min_rows)
        self._graphs_target = target
        self.captures = Captures(target.captures.record)
        self._drafter = self._graph_drafter = GraphDrafter(heads, min_rows, self.captures)
        self._is_exact = isinstance(acceptor, ExactAcceptor)
        self._acceptor = ExactAcceptor(early_exit=False) if self._is_exact else acceptor
        self._samplers: dict[object, Sampler] = {}
        self._host: dict[torch.Size, torch.Tensor] = {}
        like = None if heads is None else heads.new_cache(1, 1)
        self._memories = None if like is None else Memories(like)

    @property
    def num_captured(self) -> int:
        """Graphs made so far, the target's included."""
        return self.captures.num_captured + self._graphs_target.captures.num_captured

    @torch.inference_mode()
    def warm_up(self, trees: Sequence[Tree]) -> None:
        """Take steps of one sequence with every tree, and with each as short texts cut it."""
        self._graph_drafter.make_room(trees, self._target.device)
        cuts = {tree.truncate(depth) for tree in trees for depth in range(tree.depth + 1)}
        for sampling in _WARM_SAMPLINGS:
            for tree in sorted(cuts, key=lambda tree: tree.paths):
                first = self.join([0], Choosing(sampling), 1, False)
                selection = StaticPolicy(tree).begin(0)
                choice = StepChoice(selection, Signals(0, 0), tree.depth)
                self.step([choice], [first.token_id])
                self.leave(0)

    def step(self, choices: Sequence[StepChoice], roots: Sequence[int]) -> StepOutput:
        started = perf_counter()
        assert isinstance(self._cache, StaticCache), "step needs a running sequence"
        cache = self._cache.view(0, self.size)
        device = self._target.device
        root_ids, lengths = sent([roots, cache.lengths], device)
        draft = self._drafter(self._context, root_ids, choices)
        drafted = perf_counter()
        positions = lengths[:, None] + draft.buffers.depths
        hidden = self._target.forward(draft.ids, positions, draft.buffers.mask, cache)
        reads_root = any(choice.reads_root for choice in choices)
        outcome = self._walk(hidden, draft, lengths, reads_root)
        self._settle(hidden, outcome, cache, lengths)
        rows, root_signals = unpacked(self._copied(outcome.rows), reads_root)
        waited = perf_counter()
        said = [row[1 : 1 + row[0]] for row in rows]
        for held in (cache, self._heads_view()):
            if held is not None:
                held.advance([len(token_ids) for token_ids in said])
        for row, token_ids in zip(self._rows, said, strict=True):
            row.record.ids.extend(token_ids)
        return StepOutput(
            said,
            draft.trees,
            draft.ids.numel(),
            root_signals,
            self._logprobs(outcome.logprobs, said),
            # Most of the wait is for the forward.
            StepSeconds(drafted - started, waited - drafted, perf_counter() - waited),
        )

    def _walk(
        self,
        hidden: torch.Tensor,  # [B, T, H]
        draft: DraftedTrees,
        lengths: torch.Tensor,  # [B]
        reads_root: bool,
    ) -> _Outcome:
        """Accept; captured where nothing but this step's tensors has a say."""
        sampler, buffers = self._sampler, draft.buffers
        if not self._is_exact or sampler.looks_back or self._num_logprobs is not None:
            return self._walk_freely(hidden, draft, lengths, reads_root)

        def walk(
            hidden: torch.Tensor,
            ids: torch.Tensor,
            parents: torch.Tensor,
            depths: torch.Tensor,
            valid: torch.Tensor,
            lengths: torch.Tensor,
        ) -> Tensors:
            given = replace(buffers, parents=parents, depths=depths, valid=valid)
            draw = Draw(self._target.logits, sampler, lengths[:, None])
            found = self._acceptor(hidden, ids, given, draw)
            rows, slots, counts, _ = _outcome(found, reads_root)
            return rows, slots, counts

        width = self._graph_drafter.most_slots
        # Of slots behind those of this step only this must be right: that they are not valid.
        valid = pad(buffers.valid, (0, width - buffers.num_slots))
        inputs = (hidden, draft.ids, buffers.parents, buffers.depths, valid, lengths)
        key = ("walk", sampler, buffers.depth, reads_root, len(hidden), width)
        rows, slots, counts = self.captures.call(
            key, walk, inputs, lambda: [*(_widened(one, width) for one in inputs[:-1]), lengths]
        )
        return _Outcome(rows, slots, counts)

    def _walk_freely(
        self, hidden: torch.Tensor, draft: DraftedTrees, lengths: torch.Tensor, reads_root: bool
    ) -> _Outcome:
        history = history_of(self._sampler, self._rows, hidden.device)
        draw = Draw(
            self._target.logits, self._sampler, lengths[:, None], history, self._num_logprobs
        )
        return _outcome(self._acceptor(hidden, draft.ids, draft.buffers, draw), reads_root)

    def _settle(
        self,
        hidden: torch.Tensor,  # [B, T, H]
        outcome: _Outcome,
        cache: StaticCache,
        lengths: torch.Tensor,  # [B]
    ) -> None:
        """Move the cache rows that are kept, and give the heads their hidden states."""
        num_kept, heads_cache, used = outcome.slots.shape[1], self._heads_view(), 0
        if heads_cache is not None:
            heads_cache.reserve(max(cache.lengths) + num_kept)
            longest = max(cache.lengths) + num_kept
            used = self._graphs_target.context_bucket(longest, heads_cache.capacity)
        place = None if heads_cache is None else heads_cache.place
        width = self._graph_drafter.most_slots

        def examples() -> Tensors:
            # Rows that were moved once lie elsewhere the second time: what is captured moves none.
            still = torch.arange(num_kept, device=lengths.device).expand_as(outcome.slots)
            return _widened(hidden, width), still, outcome.counts, lengths

        result = self.captures.call(
            ("settle", cache.place, place, used, outcome.slots.shape, width),
            partial(self._settled, cache, heads_cache, used),
            (hidden, outcome.slots, outcome.counts, lengths),
            examples,
        )
        if self._heads is not None:
            self._context = result[0]

    def _settled(
        self,
        cache: StaticCache,
        heads_cache: StaticCache | None,
        used: int,
        hidden: torch.Tensor,  # [B, T, H]
        slots: torch.Tensor,  # [B, A]
        counts: torch.Tensor,  # [B]
        lengths: torch.Tensor,  # [B]
    ) -> Tensors:
        """Graph-safe: the heads' contexts `[B, H]`, if there are heads."""
        cache.move(slots, lengths)
        if self._heads is None:
            return ()
        batch, rows = slots.shape
        lanes = torch.arange(batch, device=slots.device)
        kept = hidden[lanes[:, None], slots].to(self._target.dtype)
        positions = lengths[:, None] + torch.arange(rows, device=slots.device)
        among = causal_among(batch, rows, slots.device)
        if heads_cache is None:
            contexts = self._heads.extend(kept, positions, among[:, None], None)
        else:
            mask = placed_mask(lengths, among, used)
            with heads_cache.writing_at(lengths, used):
                contexts = self._heads.extend(kept, positions, mask, heads_cache)
        return (contexts[lanes, counts - 1],)

    def _copied(self, rows: torch.Tensor) -> torch.Tensor:
        """The step's one copy to the host, and the one wait."""
        if not rows.is_cuda:
            return rows.clone()
        if rows.shape not in self._host:
            self._host[rows.shape] = torch.empty(rows.shape, dtype=rows.dtype, pin_memory=True)
        host = self._host[rows.shape]
        host.copy_(rows, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        arrived.synchronize()
        return host

    def _heads_view(self) -> StaticCache | None:
        cache = self._heads_cache
        assert cache is None or isinstance(cache, StaticCache), "made by _new_heads_cache"
        return None if cache is None else cache.view(0, self.size)

    def _new_heads_cache(self, capacity: int) -> KVCache | None:
        if self._memories is None:
            return None
        return self._memories.lend(1, first_capacity(self._target.max_length, capacity))

    def _regroup(self) -> None:
        """Samplers of one kind draw with the same tensors, which graphs know."""
        super()._regroup()
        if not self._sampler.looks_back:
            known = self._samplers.setdefault((self.size, self._sampler.kind), self._sampler)
            if known is not self._sampler:
                known.take(self._sampler)
            self._sampler = known


def _widened(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """`[B, T, …]` filled up with zeros to `[B, width, …]`."""
    return pad(tensor, (*(0, 0) * (tensor.ndim - 2), 0, width - tensor.shape[1]))


def _outcome(found: Acceptance | HostAcceptance, reads_root: bool) -> _Outcome:
    assert isinstance(found, Acceptance), "an acceptor without early exit"
    counts = found.num_accepted + 1
    rows = torch.cat([counts[:, None], found.token_ids], 1)
    rows = packed(rows, found.last_logits if reads_root else None)
    return _Outcome(rows, found.slots, counts, found.logprobs)
