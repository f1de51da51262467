"""Draft heads by the kernels of the native runtime, beside a target that runs there.

Knows: which of the heads' matrices make a kernel's question, and the memory of its answers. Does
not know: trees, who chooses among logits, how kernels compute.

A draft need not be exact, so heads take int8 like the target.

Dimension key: B batch · P paths · A new tokens · K draft heads · H hidden size · W draft
vocabulary · C children.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import pointer
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from entmtp.data.cache import Progress
from entmtp.heads.base import Draft, DraftHeads, HeadKernels
from entmtp.heads.hydra import HydraHeads
from entmtp.heads.level import Children, choose
from entmtp.heads.medusa import MedusaHeads
from entmtp.target.cache import KVCache
from entmtp.target.masks import causal_among
from entmtp.target.runtimes.native.cache import NativeCache
from entmtp.target.runtimes.native.forward import PackedDecoder
from entmtp.target.runtimes.native.library import (
    LANES,
    TILE_INPUTS,
    Head,
    Matrix,
    PackedMatrix,
    Question,
    address,
    kernels,
)
from entmtp.target.runtimes.native.library import Level as NativeLevel
from entmtp.target.runtimes.native.weights import interleaved
from entmtp.trees import Level

NUM_CHILDREN = 16
"""Best children that a kernel picks by itself; more are picked from its logits."""


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


class NativeKernels(HeadKernels):
    """Packed heads; those that need no path are asked all at once."""

    def __init__(self, heads: DraftHeads) -> None:
        self._num_threads = torch.get_num_threads()
        self._draft_ids = heads.draft_ids
        embedding = heads.embedding if heads.needs_path else torch.empty(0)
        assert embedding is not None, "bound heads have it"
        is_read = embedding.dtype in (torch.float32, torch.bfloat16)
        self._embedding = embedding.contiguous() if is_read else embedding.float()
        self._num_children = min(NUM_CHILDREN, heads.config.draft_vocab_size)
        places = range(heads.num_draft_heads)
        if heads.config.output == "own":
            self._outputs = [PackedMatrix(*heads.output(place)) for place in places]
        else:
            self._outputs = [PackedMatrix(*heads.output(0))] * heads.num_draft_heads
        self._held: list[object] = []
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

    def children(
        self, head: int, context: torch.Tensor, path: torch.Tensor, num_ranks: int
    ) -> Children:
        rows = torch.cat([context, path], -1).float().flatten(0, 1)
        return self._ask(head, 1, rows, num_ranks, path.shape[:2])[0]

    def fill_level(self, head: int, draft: Draft, context: torch.Tensor, level: Level) -> bool:
        ids, log_probs, embedding = draft.wide_ids, draft.wide_log_probs, self._embedding
        context = context.float().contiguous()
        batch, parents, depth = level.ways.shape
        named = level.ways, level.slots, level.parent_row, level.ranks
        tables = [table.contiguous() for table in named]
        struct = NativeLevel(
            pointer(self._heads[head]),
            self._outputs[head].pointer,
            *map(address, (self._draft_ids, context, embedding, *tables, ids, log_probs)),
            batch,
            parents,
            depth,
            level.slots.shape[1],
            ids.shape[1],
            min(max(level.num_ranks, 1), self._outputs[head].num_outputs),
            context.shape[1],
            embedding.dtype == torch.bfloat16,
        )
        kernels().entmtp_fill_level(struct, self._num_threads)
        return True

    def children_of_all(self, context: torch.Tensor, num_ranks: Sequence[int]) -> list[Children]:
        rows, front = context.float().contiguous(), (len(context), 1)
        if len(set(map(id, self._outputs))) == 1:
            wanted = max(num_ranks, default=0)
            answers = self._ask(0, len(num_ranks), rows, wanted, front)
            return [
                Children(*(part[..., :count] for part in one))
                for one, count in zip(answers, num_ranks, strict=True)
            ]
        return [self._ask(k, 1, rows, count, front)[0] for k, count in enumerate(num_ranks)]

    def _ask(
        self, first: int, num_heads: int, rows: torch.Tensor, num_ranks: int, front: Sequence[int]
    ) -> list[Children]:
        """The best children by each of some heads that share an output layer."""
        output = self._outputs[first]
        size = num_heads, len(rows)
        logits = torch.empty(*size, output.num_outputs)
        ids = torch.empty(*size, self._num_children, dtype=torch.long)
        log_probs = torch.empty(*size, self._num_children)
        question = Question(
            heads=pointer(self._heads[first]),
            output=output.pointer,
            draft_ids=address(self._draft_ids),
            rows=address(rows),
            logits=address(logits),
            ids=address(ids),
            log_probs=address(log_probs),
            num_heads=num_heads,
            num_rows=len(rows),
            num_children=self._num_children,
        )
        kernels().entmtp_draft(question, self._num_threads)
        if num_ranks > self._num_children:
            return [choose(one.view(*front, -1), num_ranks, self._draft_ids) for one in logits]
        return [
            Children(*(part.view(*front, -1) for part in one))
            for one in zip(ids, log_probs, strict=True)
        ]

    def new_cache(self, batch_size: int) -> NativeCache | None:
        if self._prefix is None:
            return None
        return NativeCache.of(self._layout, batch_size)

    def extend(self, hidden: torch.Tensor, cache: KVCache, counts: Sequence[int]) -> torch.Tensor:
        assert isinstance(cache, NativeCache), "a cache of new_cache"
        assert self._prefix is not None, "these heads have no prefix layer"
        batch, rows, _ = hidden.shape
        positions = torch.tensor([range(n, n + rows) for n in cache.lengths])
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
    last = None if heads.projection is None else PackedMatrix(heads.projection[head])
    return None, [PackedMatrix(*pair) for pair in pairs], last


def _hydra_head(
    first: Any, blocks: Iterable[nn.Module]
) -> tuple[PackedMatrix, list[PackedMatrix], None]:
    weight, bias = (
        interleaved(*part.chunk(2)) for part in (first.linear.weight, first.linear.bias)
    )
    linears: list[Any] = [block.linear for block in blocks]
    return PackedMatrix(weight, bias), [PackedMatrix(one.weight, one.bias) for one in linears], None
