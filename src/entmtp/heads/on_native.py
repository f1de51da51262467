"""Draft heads by the kernels of the native runtime, beside a target that runs there.

Knows: which of the heads' matrices the kernels want, and the tables of a tree's levels. Does not
know: who chooses trees, how kernels compute.

A draft need not be exact, so heads take int8 like the target, in long groups though nobody makes
their channels even.

Dimension key: B batch · A new tokens · H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import Array, pointer
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from entmtp.data.cache import Progress
from entmtp.heads.base import Draft, DraftHeads, HeadKernels
from entmtp.heads.hydra import HydraHeads
from entmtp.heads.medusa import MedusaHeads
from entmtp.target.cache import KVCache
from entmtp.target.masks import causal_among
from entmtp.target.runtimes.native.cache import NativeCache
from entmtp.target.runtimes.native.embedding import EmbeddingRows
from entmtp.target.runtimes.native.forward import PackedDecoder
from entmtp.target.runtimes.native.library import (
    LANES,
    TILE_INPUTS,
    Head,
    Matrix,
    PackedMatrix,
    address,
    kernels,
)
from entmtp.target.runtimes.native.library import Draft as NativeDraft
from entmtp.target.runtimes.native.library import Level as NativeLevel
from entmtp.target.runtimes.native.weights import interleaved, long_span
from entmtp.trees import TreeBuffers, int_tensor


def draft_natively(heads: DraftHeads, progress: Progress) -> bool:
    """Let bound `heads` compute by native kernels from now on, if they can; whether they do."""
    if not _fits(heads):
        return False
    progress(f"packing {heads.kind} heads for int8")
    heads.kernels = NativeKernels(heads)
    return True


def _fits(heads: DraftHeads) -> bool:
    """Whether all widths are whole groups, and heads of attention whole vectors."""
    widths = [heads.hidden_size]
    if (prefix := heads.config.prefix) is not None:
        widths += [prefix.intermediate_size, prefix.num_attention_heads * prefix.head_dim]
        if prefix.head_dim % LANES:
            return False
    return not any(width % TILE_INPUTS for width in widths)


class _Plan(NamedTuple):
    """The levels of a batch of trees."""

    levels: Array[NativeLevel]
    tables: list[list[torch.Tensor]]
    """What they point at"""


class NativeKernels(HeadKernels):
    """Packed heads; those that need no path are asked all at once."""

    def __init__(self, heads: DraftHeads) -> None:
        self._num_threads = torch.get_num_threads()
        self._draft_ids = heads.draft_ids
        embedding = heads.embedding if heads.needs_path else torch.empty(0, heads.hidden_size)
        assert embedding is not None, "bound heads have it"
        self._embedding = EmbeddingRows(embedding)
        places = range(heads.num_draft_heads)
        if heads.config.output == "own":
            self._outputs = [_matrix(*heads.output(place)) for place in places]
        else:
            self._outputs = [_matrix(*heads.output(0))] * heads.num_draft_heads
        self._held: list[object] = []
        self._plans: WeakKeyDictionary[TreeBuffers, _Plan] = WeakKeyDictionary()
        packed = [self._packed(*parts) for parts in _heads(heads)]
        self._heads = (Head * len(packed))(*packed)
        self._prefix = None
        if isinstance(heads, HydraHeads) and heads.prefix is not None:
            self._layout = [heads.prefix.layout]
            self._prefix = PackedDecoder(heads.prefix.body, heads.prefix.layout, self._num_threads)

    def _packed(
        self, first: PackedMatrix | None, blocks: Sequence[PackedMatrix], last: PackedMatrix | None
    ) -> Head:
        structs = (Matrix * len(blocks))(*(block.struct for block in blocks))
        self._held += [first, *blocks, last, structs]
        nothing = Matrix()
        return Head(
            first=nothing if first is None else first.struct,
            blocks=structs,
            num_blocks=len(blocks),
            projection=nothing if last is None else last.struct,
        )

    def fill(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers, heads: range) -> bool:
        plan = self._plans.get(buffers) or self._plan(buffers)
        context, ids = context.float().contiguous(), draft.wide_ids
        struct = NativeDraft(
            pointer(plan.levels[heads.start]),
            address(self._draft_ids),
            self._embedding.struct,
            *map(address, (context, ids, draft.wide_log_probs)),
            len(heads),
            *ids.shape,
            context.shape[1],
        )
        kernels().entmtp_fill(struct, self._num_threads)
        return True

    def _plan(self, buffers: TreeBuffers) -> _Plan:
        """What the kernels ask of these trees, made once."""
        tables = [
            [table.contiguous() for table in (one.ways, one.slots, one.parent_row, one.ranks)]
            for one in buffers.levels
        ]
        levels = [
            NativeLevel(
                pointer(self._heads[head]),
                output.pointer,
                *map(address, some),
                *one.ways.shape[1:],
                one.slots.shape[1],
                min(max(one.num_ranks, 1), output.num_outputs),
            )
            for head, (one, output, some) in enumerate(
                zip(buffers.levels, self._outputs, tables, strict=False)
            )
        ]
        self._plans[buffers] = plan = _Plan((NativeLevel * len(levels))(*levels), tables)
        return plan

    def new_cache(self, batch_size: int) -> NativeCache | None:
        if self._prefix is None:
            return None
        return NativeCache.of(self._layout, batch_size)

    def extend(self, hidden: torch.Tensor, cache: KVCache, counts: Sequence[int]) -> torch.Tensor:
        assert isinstance(cache, NativeCache), "a cache of new_cache"
        assert self._prefix is not None, "these heads have no prefix layer"
        batch, rows, _ = hidden.shape
        positions = int_tensor([range(n, n + rows) for n in cache.lengths], hidden.device)
        contexts = hidden.float().clone(memory_format=torch.contiguous_format)
        self._prefix.run(contexts, positions, _causal(batch, rows), cache)
        cache.advance(counts)
        return contexts


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # what is kept may be used in any mode
def _causal(batch: int, rows: int) -> torch.Tensor:
    """Which of `rows` new rows see which: `[B, rows, rows]`."""
    return causal_among(batch, rows, torch.device("cpu"))


def _heads(
    heads: DraftHeads,
) -> list[tuple[PackedMatrix | None, list[PackedMatrix], PackedMatrix | None]]:
    """First block, residual blocks and projection of each head."""
    if isinstance(heads, MedusaHeads):
        return [_medusa_head(heads, head) for head in range(heads.num_draft_heads)]
    assert isinstance(heads, HydraHeads), "there are two kinds"
    return [
        _hydra_head(first, blocks)  # type: ignore[arg-type]  # a ModuleList
        for first, blocks in zip(heads.first, heads.rest, strict=True)
    ]


def _medusa_head(
    heads: MedusaHeads, head: int
) -> tuple[None, list[PackedMatrix], PackedMatrix | None]:
    pairs = zip(heads.block_weight[head], heads.block_bias[head], strict=True)
    last = None if heads.projection is None else _matrix(heads.projection[head])
    return None, [_matrix(*pair) for pair in pairs], last


def _hydra_head(
    first: Any, blocks: Iterable[nn.Module]
) -> tuple[PackedMatrix, list[PackedMatrix], None]:
    weight, bias = (
        interleaved(*part.chunk(2)) for part in (first.linear.weight, first.linear.bias)
    )
    linears: list[Any] = [block.linear for block in blocks]
    return _matrix(weight, bias), [_matrix(one.weight, one.bias) for one in linears], None


def _matrix(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix:
    return PackedMatrix(weight, bias, span=long_span(weight.shape[1]))
