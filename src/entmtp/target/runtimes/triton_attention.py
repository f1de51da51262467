"""A Triton kernel for few query rows over much memory, with any mask.

Knows: queries, keys, values, a ready mask, where memory ends. Does not know: trees, layers.

Queries that share a key head are rows of one block (DESIGN D1), so that keys and values are read
once. Memory is cut into parts at fixed places; each part has a program of its own, which gives an
unnormalised sum with its maximum and its weight, and a second kernel puts the parts together (the
way of FlashDecoding). Where memory ends is read on the device: parts behind it do nothing, so that
one captured graph serves every length and costs what the length costs.

Dimension key: B batch · T query rows · S rows of memory · N heads · M key/value heads · G queries
per key/value head · R = G·T folded rows · P parts · D head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import nn

from entmtp.errors import ModelRefused
from entmtp.target.attention import unknown_options

_PART = 256
"""Rows of memory of one program."""
_BLOCK_BYTES = 16384
"""Keys that it looks at together: with the values and the queries, they must fit on the chip."""
_MAX_ROWS = 64
"""Folded query rows of one program."""
_MIN_TILE = 16
"""What `tl.dot` needs of every side."""


@triton.jit  # type: ignore[untyped-decorator]
def _sum_part(  # type: ignore[no-untyped-def]
    query, key, value, mask, ends, sums, tops, weights,
    scale, num_rows, num_new, num_parts, num_kv_heads,
    key_b, key_n, key_s, value_b, value_n, value_s, mask_b, mask_t,
    SIZE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One part of memory for up to ROWS folded rows of one key/value head."""
    lane, part = tl.program_id(0), tl.program_id(1)
    batch, head = lane // num_kv_heads, lane % num_kv_heads
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, TILE)
    is_row, is_column = row < num_rows, column < SIZE
    place = (lane * num_rows + row)[:, None] * SIZE + column[None, :]
    q = tl.load(query + place, mask=is_row[:, None] & is_column[None, :], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    total = tl.zeros([ROWS, TILE], tl.float32)
    end = tl.minimum(tl.load(ends + batch).to(tl.int32), (part + 1) * PART)
    for start in range(part * PART, end, BLOCK):
        at = start + tl.arange(0, BLOCK)
        is_at = at < end
        both = is_at[:, None] & is_column[None, :]
        near = key + batch * key_b + head * key_n + at[:, None] * key_s + column[None, :]
        k = tl.load(near, mask=both, other=0.0)
        seen = mask + batch * mask_b + (row % num_new)[:, None] * mask_t + at[None, :]
        added = tl.load(seen, mask=is_row[:, None] & is_at[None, :], other=float("-inf"))
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale + added.to(tl.float32)
        highest = tl.maximum(top, tl.max(score, 1))
        # Rows that have seen nothing yet have no highest score to measure from.
        base = tl.where(highest == float("-inf"), 0.0, highest)
        p = tl.exp(score - base[:, None])
        fade = tl.exp(top - base)
        weight = weight * fade + tl.sum(p, 1)
        near = value + batch * value_b + head * value_n + at[:, None] * value_s + column[None, :]
        v = tl.load(near, mask=both, other=0.0)
        total = total * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = highest
    cell = (lane * num_parts + part) * num_rows + row
    tl.store(tops + cell, top, mask=is_row)
    tl.store(weights + cell, weight, mask=is_row)
    whole = cell[:, None] * SIZE + column[None, :]
    tl.store(sums + whole, total, mask=is_row[:, None] & is_column[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _join_parts(  # type: ignore[no-untyped-def]
    sums, tops, weights, output, num_rows, num_parts,
    SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """All parts of one folded row; part by part, so that no number of them needs a new kernel."""
    lane, row = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, TILE)
    is_column = column < SIZE
    highest, weight = float("-inf"), 0.0
    total = tl.zeros([TILE], tl.float32)
    for part in range(num_parts):
        cell = (lane * num_parts + part) * num_rows + row
        top = tl.load(tops + cell)
        new = tl.maximum(highest, top)
        base = tl.where(new == float("-inf"), 0.0, new)
        fade, share = tl.exp(highest - base), tl.exp(top - base)
        total = total * fade
        total += share * tl.load(sums + cell * SIZE + column, mask=is_column, other=0.0)
        weight = weight * fade + share * tl.load(weights + cell)
        highest = new
    place = (lane * num_rows + row) * SIZE + column
    tl.store(output + place, (total / weight).to(output.dtype.element_ty), mask=is_column)


class _Sizes(NamedTuple):
    lanes: int  # B·M
    rows: int  # R
    parts: int  # P
    size: int  # D

    @property
    def tile(self) -> int:
        return max(_MIN_TILE, int(triton.next_power_of_2(self.size)))


def triton_tree_attention(
    module: nn.Module,
    query: torch.Tensor,  # [B, N, T, D]
    key: torch.Tensor,  # [B, M, S, D], the last dimension contiguous
    value: torch.Tensor,  # [B, M, S, D], likewise
    attention_mask: torch.Tensor,  # [B, 1, T, S] additive
    scaling: float | None = None,
    tree_ends: torch.Tensor | None = None,  # [B] rows of memory in use; None for all
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention `[B, T, N, D]` in the form that `AttentionInterface` expects.

    Raises:
        ModelRefused: the model passes an option that this kernel would have to drop, or its keys
            and values differ in size.
    """
    if unknown := unknown_options(options):
        raise ModelRefused(
            f"the model's attention takes the option {', '.join(unknown)}, which the triton kernel"
            " does not know; use attention sdpa"
        )
    batch, num_heads, new, size = query.shape
    num_kv_heads, longest = key.shape[1], key.shape[2]
    if value.shape[-1] != size:
        raise ModelRefused(
            f"the model's keys have {size} numbers and its values {value.shape[-1]}, and the triton"
            " kernel takes as many; use attention sdpa"
        )
    if tree_ends is None:
        tree_ends = torch.full((batch,), longest, device=query.device)
    rows = num_heads // num_kv_heads * new
    sizes = _Sizes(batch * num_kv_heads, rows, -(-longest // _PART), size)
    scale = size**-0.5 if scaling is None else scaling
    folded = query.reshape(batch, num_kv_heads, rows, size).contiguous()
    output = _run(folded, key, value, attention_mask, tree_ends, scale, sizes)
    return output.reshape(batch, num_heads, new, size).transpose(1, 2), None


def _run(
    query: torch.Tensor,  # [B, M, R, D]
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    ends: torch.Tensor,
    scale: float,
    sizes: _Sizes,
) -> torch.Tensor:
    """Both kernels; the output has the form of the folded queries."""
    front = (sizes.lanes, sizes.parts, sizes.rows)
    tops = torch.empty(front, dtype=torch.float32, device=query.device)
    weights = torch.empty_like(tops)
    sums = torch.empty(*front, sizes.size, dtype=torch.float32, device=query.device)
    output = torch.empty_like(query)
    block_rows = min(_MAX_ROWS, max(_MIN_TILE, triton.next_power_of_2(sizes.rows)))
    block = min(64, max(_MIN_TILE, _BLOCK_BYTES // (sizes.tile * key.element_size())))
    grid = (sizes.lanes, sizes.parts, -(-sizes.rows // block_rows))
    _sum_part[grid](
        query, key, value, mask, ends, sums, tops, weights,
        scale, sizes.rows, mask.shape[2], sizes.parts, key.shape[1],
        *key.stride()[:3], *value.stride()[:3], mask.stride(0), mask.stride(2),
        SIZE=sizes.size, TILE=sizes.tile, ROWS=block_rows, PART=_PART, BLOCK=block,
    )  # fmt: skip
    _join_parts[(sizes.lanes, sizes.rows)](
        sums, tops, weights, output, sizes.rows, sizes.parts,
        SIZE=sizes.size, TILE=sizes.tile,
    )  # fmt: skip
    return output
