"""Many trees on a device, each a row of fixed size: picking one is an index.

Knows: trees, and the sizes that a level is cut to. Does not know: tokens, models, graphs.

A step that is captured cannot have a shape for each tree. So rows are as large as the largest
tree, and a level of drafting is always as wide as the widest one at that depth. A tree that does
not fit makes a larger shelf necessary.

Dimension key: B batch · F rows of the shelf · T slots · D depth · W slots of the widest level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

import torch

from entmtp.trees.buffers import (
    BEHIND,
    Level,
    TreeBuffers,
    TreeTables,
    assembled,
    tree_tables,
    ways_to,
)
from entmtp.trees.tree import Tree

_CPU = torch.device("cpu")
_NUM_ROWS = 256
"""Trees at hand; with more, the one that came first makes room."""


class LevelSize(NamedTuple):
    """How wide one level is drafted."""

    num_slots: int
    num_parents: int
    num_ranks: int


class ShelfShape(NamedTuple):
    """What fits."""

    num_slots: int
    levels: tuple[LevelSize, ...]
    """Depth 1 to D"""

    @classmethod
    def of(cls, trees: Iterable[Tree], num_slots: int = 1) -> Self:
        """Just large enough for these trees, and for `num_slots` slots."""
        shape = cls(num_slots, ())
        for tree in trees:
            shape = shape.with_tree(tree)
        return shape

    def with_tree(self, tree: Tree) -> Self:
        """Large enough for this tree, too."""
        tables = tree_tables(tree, _CPU)
        own = [
            LevelSize(*sizes)
            for sizes in zip(tables.num_slots, tables.num_parents, tables.num_ranks, strict=True)
        ]
        both = zip(self.levels, own, strict=False)
        common = [LevelSize(*map(max, one, other)) for one, other in both]
        rest = max(self.levels, tuple(own), key=len)[len(common) :]
        shape = type(self)(max(self.num_slots, tree.num_nodes), (*common, *rest))
        return self if shape == self else shape


class TreeShelf:
    """Trees of up to a fixed size on a device."""

    def __init__(self, shape: ShelfShape, device: torch.device, num_rows: int = _NUM_ROWS) -> None:
        self.shape = shape
        self._num_rows = num_rows
        self._rows: dict[Tree, int] = {}
        self._num_put = 0
        depth, widest = len(shape.levels), max((one.num_slots for one in shape.levels), default=0)
        sizes = {"dtype": torch.long, "device": device}
        self._nodes = torch.zeros(num_rows, 4 + depth, shape.num_slots, **sizes)  # type: ignore[call-overload]
        self._plan = torch.zeros(num_rows, depth, 4, widest, **sizes)  # type: ignore[call-overload]

    def rows(self, trees: Sequence[Tree]) -> list[int]:
        """Where these trees are, put there if need be. No more of them than the shelf has rows.

        The tree must fit: `shape.with_tree(tree)` is `shape` itself.
        """
        for tree in trees:
            if tree not in self._rows:
                self._put(tree, frozenset(trees))
        return [self._rows[tree] for tree in trees]

    def _put(self, tree: Tree, wanted: frozenset[Tree]) -> None:
        if len(self._rows) < self._num_rows:
            row = len(self._rows)
        else:
            oldest = next(one for one in self._rows if one not in wanted)
            row = self._rows.pop(oldest)
        self._rows[tree] = row
        tables = _filled(tree_tables(tree, _CPU), self._nodes[row], self._plan[row])
        for place, table in zip((self._nodes[row], self._plan[row]), tables, strict=True):
            source = table.pin_memory() if place.is_cuda else table
            place.copy_(source, non_blocking=True)

    def buffers(self, rows: torch.Tensor) -> TreeBuffers:  # [B]
        """Buffers of the trees in these rows, of the shelf's size. Graph-safe."""
        nodes, plan = self._nodes[rows], self._plan[rows]
        levels = []
        for at, size in enumerate(self.shape.levels):
            slots, expand, parent_row, ranks = plan[:, at, :, : size.num_slots].unbind(1)
            slots = slots.clamp(max=self.shape.num_slots)
            expand = expand[:, : size.num_parents]
            ways = ways_to(nodes, expand, at + 1)
            levels.append(Level(slots, expand, parent_row, ranks, ways, size.num_ranks))
        return assembled(nodes, tuple(levels))


def _filled(
    tables: TreeTables, nodes: torch.Tensor, plan: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """A tree's tables on the host, in the size of one row of the shelf."""
    wide_nodes = torch.zeros(nodes.shape, dtype=torch.long)
    wide_nodes[: tables.nodes.shape[0], : tables.nodes.shape[1]] = tables.nodes
    wide_plan = torch.zeros(plan.shape, dtype=torch.long)
    wide_plan[:, 0] = BEHIND
    wide_plan[: tables.levels.shape[0], :, : tables.levels.shape[2]] = tables.levels
    return wide_nodes, wide_plan


def cut(buffers: TreeBuffers, num_slots: int, depth: int) -> TreeBuffers:
    """The first slots and levels of buffers, if all nodes are among them: views, no copies.

    Slots of levels are those of the whole, and what drafts into them needs a draft of its size.
    """
    return TreeBuffers(
        depth=depth,
        num_slots=num_slots,
        parents=buffers.parents[:, :num_slots],
        depths=buffers.depths[:, :num_slots],
        valid=buffers.valid[:, :num_slots],
        mask=buffers.mask[:, :num_slots, :num_slots],
        ancestors=buffers.ancestors[:, :num_slots, : depth + 1],
        levels=buffers.levels[:depth],
    )
