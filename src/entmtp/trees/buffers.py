"""A batch of trees as tensors on a device.

Knows: trees. Does not know: tokens, models, caches.

Trees of different shape share one layout: level d occupies the slots `[start_d, stop_d)` for
every sequence, wide enough for the widest. A slot that a tree does not fill is *padding*: it
hangs on the root, sees only itself and the root, and is never accepted. For a batch of equal
trees slots are node ids.

Dimension key: B batch · T slots · D depth · P expanded parents of a level · n slots of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from entmtp.trees.tree import Path, Tree


@dataclass(frozen=True)
class Level:
    """What drafting one level takes: whom to expand, and which child goes to which slot."""

    start: int
    stop: int
    expand: torch.Tensor  # [B, P] slots of the level above that have children
    parent_row: torch.Tensor  # [B, n] row of `expand` under which each slot hangs
    ranks: torch.Tensor  # [B, n]
    num_ranks: int
    """Children to take from each expanded parent: the largest rank of the level, plus one."""


@dataclass(frozen=True)
class TreeBuffers:
    """Topology of a batch of trees, ready for drafting, verification and acceptance."""

    depth: int
    num_slots: int
    parents: torch.Tensor  # [B, T]
    depths: torch.Tensor  # [B, T]
    valid: torch.Tensor  # [B, T] bool, False for padding
    mask: torch.Tensor  # [B, T, T] bool, ancestor-or-self
    ancestors: torch.Tensor  # [B, T, D+1] slots from the root down; filled up with the slot itself
    levels: tuple[Level, ...]  # depth 1 to D


@lru_cache(maxsize=512)
def tree_buffers(trees: tuple[Tree, ...], device: torch.device, min_slots: int = 1) -> TreeBuffers:
    """Buffers for one tree per sequence; built once for each combination.

    Args:
        min_slots: pad to at least this many slots, so that plain decoding can have a tree's rows.
    """
    depth = max(tree.depth for tree in trees)
    bounds = _level_bounds(trees, depth)
    rows = [_TreeRows.of(tree, bounds, max(bounds[-1][1], min_slots)) for tree in trees]
    return TreeBuffers(
        depth=depth,
        num_slots=max(bounds[-1][1], min_slots),
        parents=_stack([row.parents for row in rows], device),
        depths=_stack([row.depths for row in rows], device),
        valid=_stack([row.valid for row in rows], device),
        mask=torch.stack([_ancestor_mask(row.ancestors) for row in rows]).to(device),
        ancestors=_stack([row.ancestors for row in rows], device),
        levels=tuple(
            _level(trees, d, bounds[d], bounds[d - 1][0], device) for d in range(1, depth + 1)
        ),
    )


@dataclass(frozen=True)
class _TreeRows:
    """One tree in the shared layout, as plain lists."""

    parents: list[int]
    depths: list[int]
    valid: list[bool]
    ancestors: list[list[int]]

    @classmethod
    def of(cls, tree: Tree, bounds: list[tuple[int, int]], num_slots: int) -> _TreeRows:
        deepest = len(bounds) - 1
        slots = _slots(tree, [start for start, _ in bounds])
        rows = cls(
            [0] * num_slots,
            [0] * num_slots,
            [False] * num_slots,
            [[0] + [slot] * deepest for slot in range(num_slots)],
        )
        for depth, (start, stop) in enumerate(bounds):
            rows.depths[start:stop] = [depth] * (stop - start)
        for path, slot in slots.items():
            way = [slots[path[:d]] for d in range(len(path) + 1)]
            rows.valid[slot] = True
            rows.parents[slot] = way[-2] if path else 0
            rows.ancestors[slot] = way + [slot] * (deepest + 1 - len(way))
        return rows


def _slots(tree: Tree, starts: Sequence[int]) -> dict[Path, int]:
    taken = list(starts)
    slots = {}
    for path in tree.paths:
        slots[path] = taken[len(path)]
        taken[len(path)] += 1
    return slots


def _level_bounds(trees: tuple[Tree, ...], depth: int) -> list[tuple[int, int]]:
    bounds, start = [], 0
    for d in range(depth + 1):
        stop = start + max(tree.depths.count(d) for tree in trees)
        bounds.append((start, stop))
        start = stop
    return bounds


def _level(
    trees: tuple[Tree, ...],
    depth: int,
    bounds: tuple[int, int],
    above_start: int,
    device: torch.device,
) -> Level:
    start, stop = bounds
    expand, parent_row, ranks = [], [], []
    for tree in trees:
        children = [path for path in tree.paths if len(path) == depth]
        above = [path for path in tree.paths if len(path) == depth - 1]
        parents = list(dict.fromkeys(path[:-1] for path in children))
        padding = stop - start - len(children)
        expand.append([above_start + above.index(parent) for parent in parents])
        parent_row.append([parents.index(path[:-1]) for path in children] + [0] * padding)
        ranks.append([path[-1] for path in children] + [0] * padding)
    widest = max(len(row) for row in expand)
    expand = [row + [above_start] * (widest - len(row)) for row in expand]
    return Level(
        start,
        stop,
        _stack(expand, device),
        _stack(parent_row, device),
        _stack(ranks, device),
        max(max(row) for row in ranks) + 1,
    )


def _ancestor_mask(ancestors: list[list[int]]) -> torch.Tensor:
    mask = torch.zeros(len(ancestors), len(ancestors), dtype=torch.bool)
    return mask.scatter_(1, torch.tensor(ancestors), True)


def _stack(rows: Sequence[object], device: torch.device) -> torch.Tensor:
    return torch.tensor(rows, device=device)
