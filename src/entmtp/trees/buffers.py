"""A batch of trees as tensors on a device.

Knows: trees. Does not know: tokens, models, caches.

A tree's slots are its node ids, whatever the company; a batch is as wide as its largest tree.
Slots that a tree does not fill are *padding*: they lie behind its nodes at depth 0, see the root
and themselves, and are never accepted. Each tree's tables are made once; a batch of different
trees is a copy of them into common tensors.

Dimension key: B batch · T slots · D depth · P expanded parents of a level · n slots of a level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

import torch

from entmtp.trees.tree import Tree


@dataclass(frozen=True)
class Level:
    """What drafting one level takes: whom to expand, and which child goes to which slot."""

    slots: torch.Tensor  # [B, n] slots to fill; padding is `num_slots`, one behind the last
    expand: torch.Tensor  # [B, P] slots of the level above that have children; padding is 0
    parent_row: torch.Tensor  # [B, n] row of `expand` under which each slot hangs
    ranks: torch.Tensor  # [B, n]
    ways: torch.Tensor  # [B, P, D] slots from the root down to each of `expand`, at depth D - 1
    num_ranks: int
    """Children to take from each expanded parent: the largest rank of the level, plus one."""


@dataclass(frozen=True, eq=False)  # what is made of one is kept by which one it is
class TreeBuffers:
    """Topology of a batch of trees, ready for drafting, verification and acceptance."""

    depth: int
    num_slots: int
    parents: torch.Tensor  # [B, T]
    depths: torch.Tensor  # [B, T]
    valid: torch.Tensor  # [B, T] bool, False for padding
    mask: torch.Tensor  # [B, T, T] bool, ancestor-or-self
    ancestors: torch.Tensor  # [B, T, D+1] slots from the root down to the slot itself, then zeros
    levels: tuple[Level, ...]  # depth 1 to D
    parents_on_host: Sequence[Sequence[int]] = ()
    """`[B][T]`; those of roots and of padding are -1. Empty where the host does not know them"""


def tree_buffers(trees: Sequence[Tree], device: torch.device, min_slots: int = 1) -> TreeBuffers:
    """Buffers for one tree per sequence.

    Args:
        min_slots: pad to at least this many slots, so that plain decoding can have a tree's rows.
    """
    first = trees[0]
    if all(tree == first for tree in trees):
        return _repeated(first, len(trees), device, min_slots)
    return _composed(trees, device, min_slots)


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # what is kept may be used in any mode, whoever asked for it first
def _repeated(tree: Tree, count: int, device: torch.device, min_slots: int) -> TreeBuffers:
    return _composed((tree,) * count, device, min_slots)


@dataclass(frozen=True)
class TreeTables:
    """One tree by itself, as tensors that a batch copies from."""

    nodes: torch.Tensor  # [3 + D + 1, T] parents, depths, ones, and the ancestors of each depth
    levels: torch.Tensor  # [D, 4, W] slots, expand, parent_row, ranks; W slots of the widest level
    num_slots: tuple[int, ...]
    """Of each level"""
    num_parents: tuple[int, ...]
    """Of each level: nodes above it that have children"""
    num_ranks: tuple[int, ...]


BEHIND = 2**31
"""Padding of a level goes behind the last slot, wherever a batch says that this is."""


@lru_cache(maxsize=1024)
@torch.inference_mode(False)
def tree_tables(tree: Tree, device: torch.device) -> TreeTables:
    """A tree's tables, made once for each device."""
    levels = [_level_rows(tree, depth) for depth in range(1, tree.depth + 1)]
    widest = max((len(rows[0]) for rows in levels), default=0)
    filled = [
        [
            row + [padding] * (widest - len(row))
            for row, padding in zip(rows, (BEHIND, 0, 0, 0), strict=True)
        ]
        for rows in levels
    ]
    table = torch.tensor(filled, dtype=torch.long).reshape(tree.depth, 4, widest)
    nodes = [tree.parents, tree.depths, [1] * tree.num_nodes, *_ancestors(tree)]
    return TreeTables(
        torch.tensor(nodes).to(device),
        table.to(device),
        tuple(len(rows[0]) for rows in levels),
        tuple(len(rows[1]) for rows in levels),
        tuple(max(rows[3]) + 1 for rows in levels),
    )


def _ancestors(tree: Tree) -> list[list[int]]:
    """For each depth, the ancestor (or the node itself) of every node there; else the root."""
    rows = [[0] * tree.num_nodes for _ in range(tree.depth + 1)]
    for node, parent in enumerate(tree.parents):
        for depth in range(tree.depths[node]):
            rows[depth][node] = rows[depth][parent]
        rows[tree.depths[node]][node] = node
    return rows


def _level_rows(tree: Tree, depth: int) -> tuple[list[int], list[int], list[int], list[int]]:
    slots = [node for node, at in enumerate(tree.depths) if at == depth]
    parents = [tree.parents[slot] for slot in slots]
    expand = list(dict.fromkeys(parents))
    row_of = {parent: row for row, parent in enumerate(expand)}
    ranks = [tree.paths[slot][-1] for slot in slots]
    return slots, expand, [row_of[parent] for parent in parents], ranks


def _composed(trees: Sequence[Tree], device: torch.device, min_slots: int) -> TreeBuffers:
    tables = [tree_tables(tree, device) for tree in trees]
    depth = max(tree.depth for tree in trees)
    num_slots = max(min_slots, *(tree.num_nodes for tree in trees))
    nodes = torch.zeros(len(trees), 4 + depth, num_slots, dtype=torch.long, device=device)
    for row, one in zip(nodes, tables, strict=True):
        row[: one.nodes.shape[0], : one.nodes.shape[1]] = one.nodes
    parents = [[-1, *tree.parents[1:], *[-1] * (num_slots - tree.num_nodes)] for tree in trees]
    return assembled(nodes, _levels(tables, nodes, device), parents)


def assembled(
    nodes: torch.Tensor,  # [B, 3 + D + 1, T] parents, depths, ones; the ancestors of each depth
    levels: tuple[Level, ...],
    parents_on_host: Sequence[Sequence[int]] = (),
) -> TreeBuffers:
    """Buffers of tables that lie side by side. Graph-safe: shapes follow from shapes."""
    batch, rows, num_slots = nodes.shape
    ancestors = nodes[:, 3:].mT
    mask = torch.eye(num_slots, dtype=torch.bool, device=nodes.device).repeat(batch, 1, 1)
    return TreeBuffers(
        depth=rows - 4,
        num_slots=num_slots,
        parents=nodes[:, 0],
        depths=nodes[:, 1],
        valid=nodes[:, 2].bool(),
        mask=mask.scatter_(2, ancestors, True),
        ancestors=ancestors,
        levels=levels,
        parents_on_host=parents_on_host,
    )


def ways_to(nodes: torch.Tensor, expand: torch.Tensor, depth: int) -> torch.Tensor:
    """A level's `ways`, of tables as `assembled` takes them; `depth` is that of its slots.

    Graph-safe.
    """
    batch = torch.arange(nodes.shape[0], device=nodes.device)[:, None]
    return nodes[:, 3 : 3 + depth].mT[batch, expand]


def _levels(
    tables: Sequence[TreeTables],
    nodes: torch.Tensor,  # [B, 3 + D + 1, T] as `assembled` takes them
    device: torch.device,
) -> tuple[Level, ...]:
    depth, num_slots = nodes.shape[1] - 4, nodes.shape[2]
    widest = max(one.levels.shape[-1] for one in tables)
    plan = torch.zeros(len(tables), depth, 4, widest, dtype=torch.long, device=device)
    plan[:, :, 0] = BEHIND
    for row, one in zip(plan, tables, strict=True):
        row[: one.levels.shape[0], :, : one.levels.shape[2]] = one.levels
    plan[:, :, 0].clamp_(max=num_slots)
    levels = []
    for at, counts in enumerate(zip_longest(*(one.num_slots for one in tables), fillvalue=0)):
        slots, expand, parent_row, ranks = plan[:, at, :, : max(counts)].unbind(1)
        reaching = [one for one in tables if len(one.num_slots) > at]
        num_parents = max(one.num_parents[at] for one in reaching)
        num_ranks = max(one.num_ranks[at] for one in reaching)
        expand = expand[:, :num_parents]
        ways = ways_to(nodes, expand, at + 1)
        levels.append(Level(slots, expand, parent_row, ranks, ways, num_ranks))
    return tuple(levels)
