"""Trees: what is one and what is none, and that drawing and writing lose nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entmtp.errors import TreeError
from entmtp.trees import Path as RankPath
from entmtp.trees import Tree, draw_tree, read_tree, tree_buffers

ranks = st.integers(0, 5)
rank_paths = st.lists(st.lists(ranks, min_size=1, max_size=5).map(tuple), max_size=14)


def closed(paths: Iterable[RankPath]) -> list[RankPath]:
    """The paths and all their beginnings."""
    return sorted({path[:end] for path in paths for end in range(1, len(path) + 1)})


trees = rank_paths.map(closed).map(Tree.from_paths)
odd_values = st.one_of(
    st.none(), st.booleans(), st.floats(), st.text(max_size=3), st.integers(-2, -1), st.just({})
)
odd_paths = st.one_of(
    odd_values,
    st.lists(st.one_of(ranks, odd_values), max_size=3),
    st.lists(st.integers(-1, 1), min_size=1, max_size=2),
)


def is_tree(paths: list[Any]) -> bool:
    """The definition, word by word."""
    for path in paths:
        if not isinstance(path, (list, tuple)):
            return False
        if any(type(rank) is not int or rank < 0 for rank in path):
            return False
    nodes = [tuple(path) for path in paths if path]
    if len(set(nodes)) < len(nodes):
        return False
    return all(path[:-1] in nodes for path in nodes if len(path) > 1)


@given(rank_paths, st.lists(odd_paths, max_size=2), st.randoms())
def test_exactly_the_prefix_closed_sets_of_paths_are_trees(
    paths: list[RankPath], odd: list[Any], random: Random
) -> None:
    given_paths = [*(paths if len(paths) % 2 else closed(paths)), *odd]
    random.shuffle(given_paths)
    if is_tree(given_paths):
        assert set(Tree.from_paths(given_paths).paths) == {(), *map(tuple, given_paths)}
    else:
        with pytest.raises(TreeError) as caught:
            Tree.from_paths(given_paths)
        assert "\n" not in str(caught.value)


@given(trees, st.integers(0, 6))
def test_a_truncated_tree_is_closed_and_loses_only_what_is_deeper(tree: Tree, depth: int) -> None:
    cut = tree.truncate(depth)
    assert is_tree(list(cut.paths))
    assert set(tree.paths) - set(cut.paths) == {path for path in tree.paths if len(path) > depth}
    assert cut.truncate(depth) is cut
    assert tree.truncate(depth + 1).truncate(depth) == cut


def parse_drawing(text: str) -> Tree:
    """Read a drawing back: three characters of indent a level, `a..b` for a run of leaves."""
    root, *lines = text.split("\n")
    assert root == "root"
    way: list[int] = []
    paths = []
    for line in lines:
        indent, _, name = line.rpartition("─ ")
        level = len(indent) // 3
        first, _, last = name.partition("..")
        for rank in range(int(first), int(last or first) + 1):
            way = [*way[:level], rank]
            paths.append(tuple(way))
    return Tree.from_paths(paths)


@given(trees)
def test_a_drawing_holds_the_whole_tree(tree: Tree) -> None:
    assert parse_drawing(draw_tree(tree)) == tree


@given(trees, st.randoms())
def test_a_file_holds_the_whole_tree(tree: Tree, random: Random) -> None:
    paths = [list(path) for path in tree.paths]
    random.shuffle(paths)
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tree.json"
        file.write_text(json.dumps(paths), encoding="utf-8")
        assert read_tree(file) == tree


@given(st.lists(trees, min_size=1, max_size=4).map(tuple), st.integers(1, 40))
def test_visibility_is_ancestry(batch: tuple[Tree, ...], min_slots: int) -> None:
    """From the parents alone: a node sees another one if climbing up leads there."""
    buffers = tree_buffers(batch, torch.device("cpu"), min_slots)
    for row, tree in enumerate(batch):
        parents = buffers.parents[row].tolist()
        assert int(buffers.valid[row].sum()) == tree.num_nodes
        for slot in range(buffers.num_slots):
            way = {slot}
            at = slot
            while at != 0:
                at = parents[at]
                way.add(at)
            assert set(buffers.mask[row, slot].nonzero()[:, 0].tolist()) == way
            if buffers.valid[row, slot]:
                assert int(buffers.depths[row, slot]) == len(way) - 1
