"""Buffers of a batch of trees against a slow reference, node by node."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.trees import ROOT, Path, Tree, TreeBuffers, chain, full, medusa_63, tree_buffers

CPU = torch.device("cpu")
BATCHES = (
    (medusa_63(),),
    (ROOT,),
    (ROOT, ROOT),
    (ROOT, chain(4), full(3, 2)),
    (chain(3), Tree.from_paths([(4,), (2,), (2, 9), (4, 0), (4, 3), (4, 3, 1), (4, 3, 7)])),
    (full(4, 2), ROOT, medusa_63(), chain(1)),
)


def slots_of(buffers: TreeBuffers, row: int) -> dict[Path, int]:
    """Each node's slot, read off the drafting plan alone."""
    slots: dict[Path, int] = {(): 0}
    paths: dict[int, Path] = {0: ()}
    for level in buffers.levels:
        for place, slot in enumerate(range(level.start, level.stop)):
            if buffers.valid[row, slot]:
                parent = int(level.expand[row, level.parent_row[row, place]])
                path = (*paths[parent], int(level.ranks[row, place]))
                slots[path], paths[slot] = slot, path
    return slots


def check(trees: tuple[Tree, ...], buffers: TreeBuffers, num_slots: int) -> None:
    depth = max(tree.depth for tree in trees)
    assert (buffers.depth, buffers.num_slots, len(buffers.levels)) == (depth, num_slots, depth)
    for row, tree in enumerate(trees):
        slots = slots_of(buffers, row)
        assert set(slots) == set(tree.paths)
        assert int(buffers.valid[row].sum()) == tree.num_nodes
        for path, slot in slots.items():
            way = [slots[path[:end]] for end in range(len(path) + 1)]
            assert buffers.depths[row, slot] == len(path)
            assert buffers.parents[row, slot] == (way[-2] if path else 0)
            filled = way + [slot] * (depth + 1 - len(way))
            assert buffers.ancestors[row, slot].tolist() == filled
            assert buffers.mask[row, slot].nonzero()[:, 0].tolist() == sorted(way)
        for slot in (~buffers.valid[row]).nonzero()[:, 0].tolist():
            # Padding sees no other node but the root, and nothing real sees it.
            assert buffers.mask[row, slot].nonzero()[:, 0].tolist() in ([0], [0, slot])
            assert not buffers.mask[row, buffers.valid[row], slot].any()
            assert buffers.ancestors[row, slot].max() < num_slots
    check_levels(buffers)


def check_levels(buffers: TreeBuffers) -> None:
    above = (0, 1)
    for level in buffers.levels:
        assert level.start == above[1]
        # Even the padding of the plan points at slots that exist.
        assert int(level.expand.min()) >= above[0]
        assert int(level.expand.max()) < above[1]
        assert int(level.parent_row.max()) < level.expand.shape[1]
        assert level.num_ranks == int(level.ranks.max()) + 1
        above = (level.start, level.stop)


def widest(trees: tuple[Tree, ...]) -> int:
    depth = max(tree.depth for tree in trees)
    return sum(max(tree.depths.count(d) for tree in trees) for d in range(depth + 1))


@pytest.mark.parametrize("trees", BATCHES)
def test_batches_of_different_trees(trees: tuple[Tree, ...]) -> None:
    check(trees, tree_buffers(trees, CPU), widest(trees))


@pytest.mark.parametrize("trees", BATCHES)
def test_padded_to_more_rows(trees: tuple[Tree, ...]) -> None:
    for min_slots in (1, 7, 150):
        num_slots = max(widest(trees), min_slots)
        check(trees, tree_buffers(trees, CPU, min_slots), num_slots)


def closed(paths: list[list[int]]) -> Tree:
    ends = {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    return Tree.from_paths(sorted(ends))


some_trees = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=10).map(closed)


@given(st.lists(some_trees, min_size=1, max_size=4).map(tuple))
@settings(max_examples=40, deadline=None)
def test_random_trees(trees: tuple[Tree, ...]) -> None:
    check(trees, tree_buffers(trees, CPU), widest(trees))


@given(some_trees)
@settings(max_examples=20, deadline=None)
def test_slots_of_a_lone_tree_are_its_nodes(tree: Tree) -> None:
    buffers = tree_buffers((tree,), CPU)
    assert buffers.parents[0].tolist() == list(tree.parents)
    assert buffers.depths[0].tolist() == list(tree.depths)
    assert bool(buffers.valid.all())
    slots = slots_of(buffers, 0)
    assert [slots[path] for path in tree.paths] == list(range(tree.num_nodes))


def test_P04_switching_builds_nothing_twice() -> None:
    trees = [chain(2), medusa_63(), full(3, 2), ROOT]
    first = [tree_buffers((tree,), CPU) for tree in trees]
    misses = tree_buffers.cache_info().misses
    for _ in range(50):
        # An equal tree is as good as the same one.
        for tree, buffers in zip(trees, first, strict=True):
            assert tree_buffers((Tree.from_paths(tree.paths),), torch.device("cpu")) is buffers
    assert tree_buffers.cache_info().misses == misses
    cut = medusa_63().truncate(2)
    assert tree_buffers((cut,), CPU) is tree_buffers((medusa_63().truncate(2),), CPU)
