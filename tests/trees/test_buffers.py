"""Buffers of a batch of trees against a slow reference, node by node."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.trees import ROOT, Path, Tree, TreeBuffers, chain, full, medusa_63, tree_buffers
from entmtp.trees import buffers as buffers_room

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
        for place, slot in enumerate(level.slots[row].tolist()):
            if slot < buffers.num_slots:
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
        assert [slots[path] for path in tree.paths] == list(range(tree.num_nodes))
        for path, slot in slots.items():
            way = [slots[path[:end]] for end in range(len(path) + 1)]
            assert buffers.depths[row, slot] == len(path)
            assert buffers.parents[row, slot] == (way[-2] if path else 0)
            filled = way + [0] * (depth + 1 - len(way))
            assert buffers.ancestors[row, slot].tolist() == filled
            assert buffers.mask[row, slot].nonzero()[:, 0].tolist() == sorted(way)
        for slot in (~buffers.valid[row]).nonzero()[:, 0].tolist():
            # Padding sees no other node but the root, and nothing real sees it.
            assert buffers.mask[row, slot].nonzero()[:, 0].tolist() == [0, slot]
            # A position past the context is never fed, whatever others draft.
            assert buffers.depths[row, slot] == 0
            assert not buffers.mask[row, buffers.valid[row], slot].any()
            assert buffers.ancestors[row, slot].max() < num_slots
    check_levels(buffers)


def check_levels(buffers: TreeBuffers) -> None:
    for depth, level in enumerate(buffers.levels, start=1):
        is_real = level.slots < buffers.num_slots
        assert bool((level.slots[~is_real] == buffers.num_slots).all())
        rows = is_real.nonzero()[:, 0]
        assert bool((buffers.depths[rows, level.slots[is_real]] == depth).all())
        # Even the padding of the plan points at slots that exist.
        assert int(level.expand.max()) < buffers.num_slots
        assert int(level.parent_row.max()) < level.expand.shape[1]
        assert level.num_ranks == int(level.ranks.max()) + 1
        for row, parents in enumerate(level.expand):
            assert torch.equal(level.ways[row], buffers.ancestors[row, parents, :depth])


def widest(trees: tuple[Tree, ...]) -> int:
    return max(tree.num_nodes for tree in trees)


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
    for _ in range(50):
        # An equal tree is as good as the same one.
        for tree, buffers in zip(trees, first, strict=True):
            assert tree_buffers((Tree.from_paths(tree.paths),), torch.device("cpu")) is buffers
    cut = medusa_63().truncate(2)
    assert tree_buffers((cut,), CPU) is tree_buffers((medusa_63().truncate(2),), CPU)


def test_P04_a_batch_that_switches_builds_each_tree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the combination: 8 sequences among K trees, then 7, and down to 1."""
    trees = [full(2, 4), chain(3), Tree.from_paths([(3,), (3, 1), (0,)]), full(5, 1).truncate(1)]
    built: list[Tree] = []
    build = buffers_room._level_rows

    def counted(tree: Tree, depth: int) -> tuple[list[int], list[int], list[int], list[int]]:
        built.append(tree)
        return build(tree, depth)

    monkeypatch.setattr(buffers_room, "_level_rows", counted)
    buffers_room.tree_tables.cache_clear()
    draw = random.Random(0)
    for size in (8, 8, 8, 7, 6, 5, 4, 3, 2, 1):
        for _ in range(20):
            tree_buffers([draw.choice(trees) for _ in range(size)], CPU)
    assert len(built) == sum(tree.depth for tree in trees)


def test_buffers_first_asked_for_in_inference_mode_serve_training_too() -> None:
    tree = Tree.from_paths([(6,), (6, 4)])
    with torch.inference_mode():
        tree_buffers((tree, chain(2)), CPU)  # tables of both
        alone = tree_buffers((tree,), CPU)
    together = tree_buffers((tree, chain(3)), CPU)
    for buffers in (alone, together):
        assert not buffers.parents.is_inference()
        assert not buffers.levels[0].slots.is_inference()
