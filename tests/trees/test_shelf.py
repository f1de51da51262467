"""A shelf's rows are the trees' own buffers, whatever else stands on it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from entmtp.trees import ROOT, Level, Tree, TreeBuffers, chain, full, tree_buffers
from entmtp.trees.shelf import LevelSize, ShelfShape, TreeShelf, cut

CPU = torch.device("cpu")
SPARSE = Tree.from_paths([(0,), (1,), (3,), (3, 2), (1, 5), (1, 6), (3, 2, 1), (1, 6, 7)])
TREES = (ROOT, chain(4), full(3, 2), SPARSE)


def shelf(num_rows: int = 8, num_slots: int = 16) -> TreeShelf:
    return TreeShelf(ShelfShape.of(TREES, num_slots), CPU, num_rows)


def assert_equal(got: TreeBuffers, expected: TreeBuffers) -> None:
    for field in dataclasses.fields(TreeBuffers):
        if field.name not in ("levels", "parents_on_host"):
            one, other = getattr(got, field.name), getattr(expected, field.name)
            assert one == other if isinstance(one, int) else torch.equal(one, other), field.name


def children(level: Level, num_slots: int) -> list[set[tuple[int, int, int]]]:
    """(slot, its parent's slot, its rank) of each real child, by row."""
    parents = level.expand.gather(1, level.parent_row)
    rows = torch.stack([level.slots, parents, level.ranks], -1).tolist()
    return [{tuple(child) for child in row if child[0] < num_slots} for row in rows]


@pytest.mark.parametrize("batch", [(SPARSE,), (chain(4), SPARSE, ROOT), (full(3, 2),) * 2])
def test_rows_are_the_trees_buffers(batch: tuple[Tree, ...]) -> None:
    standing = shelf()
    standing.rows(TREES)
    got = standing.buffers(torch.tensor(standing.rows(batch)))
    depth = max(tree.depth for tree in batch)
    expected = tree_buffers(batch, CPU, 16)
    assert_equal(cut(got, 16, depth), expected)
    for one, other in zip(got.levels, expected.levels, strict=False):
        assert one.num_ranks >= other.num_ranks
        assert children(one, 16) == children(other, 16)


def test_every_level_has_the_width_of_the_widest() -> None:
    shape = shelf().shape
    assert shape.num_slots == 16
    assert shape.levels == (
        LevelSize(4 - 1, 1, 4),
        LevelSize(9, 3, 7),
        LevelSize(2, 2, 8),
        LevelSize(1, 1, 1),
    )
    buffers = shelf().buffers(torch.zeros(2, dtype=torch.long))
    assert [level.slots.shape for level in buffers.levels] == [(2, 3), (2, 9), (2, 2), (2, 1)]


def test_a_tree_that_does_not_fit_makes_another_shape() -> None:
    shape = ShelfShape.of([chain(2)])
    assert shape.with_tree(chain(1)) is shape
    assert shape.with_tree(full(2, 1)).levels[0] == LevelSize(2, 1, 2)
    assert len(shape.with_tree(chain(3)).levels) == 3


def test_the_first_to_come_makes_room() -> None:
    small = shelf(num_rows=2)
    assert small.rows([chain(4), ROOT]) == [0, 1]
    assert small.rows([SPARSE, ROOT]) == [0, 1]  # the chain is gone, the root is wanted
    expected = tree_buffers((SPARSE,), CPU, 16)
    assert_equal(cut(small.buffers(torch.tensor([0])), 16, 3), expected)
