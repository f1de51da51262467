"""The target by CUDA graphs: a step launches one graph instead of a thousand kernels.

Knows: buckets of nodes and of context, and the forward of a verification as a graph-safe function.
Does not know: trees, acceptance, drafts (`engine.graphed` makes graphs of those).

A graph is made for a *node bucket* (rows, filled up with padding that sees itself alone) and a
*context bucket* (rows of memory that attention goes through). Ids, positions, lengths and the
visibility among the rows are inputs: any tree of up to so many nodes runs in it.

Dimension key: B batch · T rows · H hidden size.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import torch
from torch.nn.functional import pad

from entmtp.data.cache import Progress, silent
from entmtp.errors import BadInput
from entmtp.target.architecture import FULL, SLIDING
from entmtp.target.cache import KVCache
from entmtp.target.masks import additive, causal_among, near_mask, placed_mask
from entmtp.target.model import Masks, TargetModel
from entmtp.target.plain import PlainCache
from entmtp.target.runtimes.capture import Captures, CudaRecorder, Recorder, Tensors, sent
from entmtp.target.runtimes.static_cache import Memories, StaticCache
from entmtp.target.runtimes.tree_attention import TreeAttention, tree_attention

NODE_BUCKETS = (1, 8, 16, 24, 32, 48, 64)
"""Rows of a graph; beyond, multiples of the last."""
_FIRST_CONTEXT = 512
"""Rows of the smallest context bucket; each next one has twice as many."""
_FIRST_CAPACITY = 4096
"""Rows that a cache has from the beginning, where the model's context is as long."""


class GraphsTarget(TargetModel):
    """A `TargetModel` that verifies by replaying graphs. Prompts run as in `eager`."""

    runtime = "graphs"

    def __init__(
        self,
        target: TargetModel,
        attention: str = "sdpa",
        *,
        recorder: Recorder | None = None,
        progress: Progress = silent,
    ) -> None:
        """
        Args:
            attention: one of `ATTENTIONS`.
            recorder: what stands in for CUDA graphs where there are none.

        Raises:
            BadInput: the target is not on a CUDA device; there is no such attention, or not here.
        """
        if recorder is None and (reason := misfit(target)):
            raise BadInput(f"the graphs runtime cannot be used: {reason}")
        super().__init__(target.unmodified)
        self.captures = Captures(recorder or CudaRecorder())
        self.attention = attention
        self._attention: TreeAttention = tree_attention(attention)
        self._progress = progress
        self._memories = Memories(
            KVCache.allocate(self.layout, 1, 1, dtype=self.dtype, device=self.device)
        )

    def with_window(self, window: int) -> GraphsTarget:
        return GraphsTarget(
            super().with_window(window), self.attention, recorder=self.captures.record
        )

    def new_cache(self, batch_size: int, capacity: int) -> StaticCache:
        """An empty cache, where possible in memory that graphs know and nobody uses any more."""
        return self._memories.lend(batch_size, first_capacity(self.max_length, capacity))

    def forward(
        self,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        """Hidden states `[B, T, H]`, which hold until the next forward of as many rows."""
        assert isinstance(cache, StaticCache), "a cache of new_cache"
        rows = ids.shape[1]
        more = node_bucket(rows) - rows
        if more:
            ids, positions = pad(ids, (0, more)), pad(positions, (0, more))
            alone = torch.eye(rows + more, dtype=torch.bool, device=ids.device)
            among = alone | pad(among, (0, more, 0, more))
        longest = max(cache.lengths)
        cache.reserve(longest + rows + more)
        used = self.context_bucket(longest + rows + more, cache.capacity)
        lengths = sent(cache.lengths, self.device)
        return self._replay(cache, used, ids, positions, among, lengths)[:, :rows]

    def forward_prompt(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        among: torch.Tensor,
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        """As `eager`: chunks have many lengths, and enough to compute to keep a device busy."""
        return super().forward(ids, positions, among, cache)

    def warm_up(self, num_rows: Collection[int]) -> None:
        """Capture steps of one sequence, in every context bucket of a new cache."""
        with torch.inference_mode():
            cache = self.new_cache(1, 1)
            for rows in sorted({node_bucket(rows) for rows in num_rows}):
                zeros = torch.zeros(1, rows, dtype=torch.long, device=self.device)
                among = causal_among(1, rows, self.device)
                for used in self._context_buckets(cache.capacity):
                    self._progress(f"capturing {rows} rows over {used}")
                    self._replay(cache, used, zeros, zeros, among, zeros[:, 0])
            self.logits(torch.zeros(1, self.hidden_size, dtype=self.dtype, device=self.device))

    def _replay(self, cache: StaticCache, used: int, *inputs: torch.Tensor) -> torch.Tensor:
        view = cache.view(0, cache.batch_size)  # graphs must not be who holds a cache
        key = ("verify", view.place, used, inputs[0].shape)
        [hidden] = self.captures.call(key, partial(self._verify, view, used), inputs)
        return hidden

    def _verify(
        self,
        cache: StaticCache,
        used: int,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool
        lengths: torch.Tensor,  # [B]
    ) -> Tensors:
        """Graph-safe: hidden states `[B, T, H]`; T rows of memory are written behind `lengths`."""
        options = self._attention.options(lengths + ids.shape[1])
        with cache.writing_at(lengths, used), self._attention.within(self.transformers_model):
            output = self._body(
                input_ids=ids,
                position_ids=positions,
                attention_mask=self._static_masks(lengths, positions, among, used),
                cache=cache,
                use_cache=True,
                **options,
            )
        return (output.last_hidden_state,)

    def _static_masks(
        self, lengths: torch.Tensor, positions: torch.Tensor, among: torch.Tensor, used: int
    ) -> Masks:
        """As `TargetModel`'s, without a look at the lengths."""
        full = placed_mask(lengths, among, used)
        window = self.architecture.window
        if window is None:
            return additive(full, self.dtype)
        near = additive(full & near_mask(lengths, positions, used, window), self.dtype)
        if FULL not in self.architecture.kinds:
            return near
        return {FULL: additive(full, self.dtype), SLIDING: near}

    def context_bucket(self, length: int, capacity: int) -> int:
        """Rows of memory that attention goes through for this many in use."""
        return next(used for used in self._context_buckets(capacity) if used >= length)

    def _context_buckets(self, capacity: int) -> list[int]:
        """Rows that attention may go through: all, or powers of two, where it needs to know."""
        buckets = [] if self._attention.knows_ends else [_FIRST_CONTEXT]
        while buckets and 2 * buckets[-1] < capacity:
            buckets.append(2 * buckets[-1])
        return [bucket for bucket in buckets if bucket < capacity] + [capacity]


def misfit(target: TargetModel) -> str | None:
    """Why graphs cannot be used for this target."""
    if target.device.type != "cuda":
        return f"it is for CUDA devices, and the model is on {target.device}"
    if target.tree_refusal:
        return "the model was let in for plain decoding only"
    return None


def first_capacity(max_length: int, wanted: int) -> int:
    """Rows that a cache begins with: to grow is to capture anew."""
    return max(wanted, min(max_length, _FIRST_CAPACITY) + NODE_BUCKETS[-1])


def node_bucket(rows: int) -> int:
    """The rows that a graph has for so many."""
    largest = NODE_BUCKETS[-1]
    if rows > largest:
        return -(-rows // largest) * largest
    return next(bucket for bucket in NODE_BUCKETS if bucket >= rows)
