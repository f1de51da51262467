"""Trees are prefix-closed sets of rank paths, of any shape, and say what is wrong with others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.errors import TreeError
from entmtp.trees import ROOT, Path, Tree, chain, full, medusa_63

PATHS = [[0], [2], [2, 1], [0, 3], [2, 1, 0]]


def closed(paths: list[list[int]]) -> list[Path]:
    """The paths and all their beginnings."""
    return sorted({tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)})


some_paths = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), max_size=12).map(closed)
some_trees = some_paths.map(Tree.from_paths)


def test_nodes_are_breadth_first() -> None:
    tree = Tree.from_paths(PATHS)
    assert tree.paths == ((), (0,), (2,), (0, 3), (2, 1), (2, 1, 0))
    assert tree.parents == (0, 0, 0, 1, 2, 4)
    assert tree.depths == (0, 1, 1, 2, 2, 3)
    assert (tree.num_nodes, tree.num_draft_tokens, tree.depth, tree.max_rank) == (6, 5, 3, 3)


def test_the_root_alone() -> None:
    assert Tree.from_paths([]) == Tree.from_paths([()]) == ROOT == chain(0)
    assert (ROOT.num_nodes, ROOT.num_draft_tokens, ROOT.depth, ROOT.max_rank) == (1, 0, 0, -1)
    assert ROOT.parents == ROOT.depths == (0,)


@given(some_paths, st.randoms())
@settings(max_examples=40, deadline=None)
def test_order_and_a_named_root_do_not_matter(paths: list[Path], random: object) -> None:
    shuffled = [(), *paths]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    tree = Tree.from_paths(shuffled)
    assert tree == Tree.from_paths(paths)
    assert hash(tree) == hash(Tree.from_paths(paths))
    for node, path in enumerate(tree.paths):
        assert tree.paths[tree.parents[node]] == path[:-1]
        assert tree.parents[node] < node or node == 0


@pytest.mark.parametrize(
    ("paths", "said"),
    [
        ([[0], [0, 1, 2]], r"path \[0, 1, 2\] has no parent \[0, 1\]"),
        ([[1, 0]], r"path \[1, 0\] has no parent \[1\]"),
        ([[0], [1], [0]], r"path \[0\] stands twice"),
        ([[0], [-1]], r"\[-1\] is not a path"),
        ([[0], ["1"]], r"\['1'\] is not a path"),
        ([[0], [0.5]], r"\[0.5\] is not a path"),
        ([[True]], r"\[True\] is not a path"),
        ([[0], 1], r"1 is not a path"),
        (["0"], r"'0' is not a path"),
        ([None], r"None is not a path"),
    ],
)
def test_the_bad_path_is_named(paths: list[object], said: str) -> None:
    with pytest.raises(TreeError, match=said) as caught:
        Tree.from_paths(paths)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@given(some_trees, st.integers(-1, 5))
@settings(max_examples=40, deadline=None)
def test_truncate(tree: Tree, depth: int) -> None:
    cut = tree.truncate(depth)
    assert cut.depth == min(tree.depth, max(0, depth))
    assert set(cut.paths) == {path for path in tree.paths if len(path) <= max(0, depth)}
    assert cut == Tree.from_paths(cut.paths)
    assert tree.truncate(tree.depth) is tree


def test_medusa_63() -> None:
    tree = medusa_63()
    assert [tree.depths.count(depth) for depth in range(1, 5)] == [10, 28, 23, 2]
    assert (tree.num_draft_tokens, tree.max_rank) == (63, 9)
    num_leaves = tree.num_nodes - len(set(tree.parents))
    assert num_leaves == 42
    assert {(0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 9), (9,), (3, 1)} <= set(tree.paths)
    assert Tree.from_paths(tree.paths) == tree


def test_chains_and_full_trees() -> None:
    assert chain(3).paths == ((), (0,), (0, 0), (0, 0, 0))
    assert full(8, 2).num_draft_tokens == 8 + 64
    assert full(2, 3).max_rank == 1
    assert full(1, 4) == chain(4)
