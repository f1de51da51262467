"""The best tree of a size against every other tree of that size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from entmtp.calibrate.best import PathTable, best_trees, frontier
from entmtp.calibrate.contiguous import best_contiguous
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.calibrate.walk import Places, accepted_at, visited
from entmtp.trees import ROOT, Path, Tree, full
from made_traces import by_chance, by_hand


def all_trees(num_drafts: int, *, is_contiguous: bool = False) -> Iterator[Tree]:
    """Every tree of that many drafts among ranks 0 to 2, two deep."""
    for chosen in combinations(full(3, 2).paths[1:], num_drafts):
        nodes: set[Path] = {(), *chosen}
        needed = {path[:-1] for path in chosen}
        if is_contiguous:
            needed |= {(*path[:-1], rank) for path in chosen for rank in range(path[-1])}
        if needed <= nodes:
            yield Tree.from_paths(chosen)


def steps(trace: RankTrace, tree: Tree) -> int:
    return len(visited(trace, accepted_at(trace, tree)))


def low_ranks(seed: int, num_rows: int = 3, length: int = 30) -> RankTrace:
    generator = np.random.default_rng(seed)
    ranks = generator.choice([0, 1, 2, MISS], (num_rows, length, 2), p=[0.2, 0.4, 0.3, 0.1])
    return by_hand(*ranks.tolist())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_contiguous", [False, True])
def test_no_tree_catches_more_at_the_same_starts(seed: int, is_contiguous: bool) -> None:
    trace = low_ranks(seed)
    starts: Places = np.flatnonzero(np.random.default_rng(seed).random(len(trace.ranks)) < 0.7)
    table = PathTable.of(trace)
    for num_drafts in range(1, 6):
        tree = Tree.from_paths(table.most_frequent(table.count(starts, 2), num_drafts))
        if is_contiguous:
            tree = best_contiguous(table, 2, num_drafts + 1, starts)
        others = list(all_trees(num_drafts, is_contiguous=is_contiguous))
        most = max(accepted_at(trace, other)[starts].sum() for other in others)
        assert tree in others
        assert accepted_at(trace, tree)[starts].sum() == most


@pytest.mark.parametrize("is_contiguous", [False, True])
def test_no_tree_needs_fewer_steps_of_its_own(is_contiguous: bool) -> None:
    """Over whole runs, where counting and walking in turns may miss the very best by chance."""
    for seed in range(4):
        trace = low_ranks(seed, num_rows=20)
        trees = best_trees(trace, max_nodes=5, is_contiguous=is_contiguous)
        assert [tree.num_nodes for tree in trees] == [1, 2, 3, 4, 5]
        for num_drafts in range(1, 5):
            others = all_trees(num_drafts, is_contiguous=is_contiguous)
            fewest = min(steps(trace, other) for other in others)
            assert steps(trace, trees[num_drafts]) <= 1.02 * fewest


def test_counting_at_visited_starts_beats_counting_everywhere() -> None:
    # Everywhere, rank 1 leads 4 to 3; but its hits come in a run, and a step jumps every second.
    ranks = (1, 1, 1, 1, MISS, 0, MISS, 0, MISS, 0, MISS, MISS, MISS)
    trace = by_hand([[rank] for rank in ranks])
    table = PathTable.of(trace)
    everywhere = Tree.from_paths(table.most_frequent(table.count(np.arange(13), 1), 1))
    assert everywhere == Tree.from_paths([(1,)])
    assert best_trees(trace, 2)[1] == Tree.from_paths([(0,)])
    assert steps(trace, Tree.from_paths([(0,)])) < steps(trace, everywhere)


def test_ties_go_to_the_shallower_and_then_to_the_smaller_path() -> None:
    trace = by_hand([[2, 1], [0, 0], [MISS, MISS], [MISS, MISS]] * 3)
    table = PathTable.of(trace)
    counts = np.full(len(table.paths), 5)
    assert table.paths == ((0,), (2,), (0, 0), (2, 1))
    assert table.most_frequent(counts, 3) == [(0,), (2,), (0, 0)]


def test_trees_end_where_the_paths_do() -> None:
    assert best_trees(by_hand([[MISS], [MISS], [MISS]])) == (ROOT,)
    trees = best_trees(by_hand([[4], [4], [0], [MISS], [MISS]]), 8)
    assert trees[-1] == Tree.from_paths([(0,), (4,)])
    contiguous = best_trees(by_hand([[1], [1], [9], [MISS], [MISS]]), 8, is_contiguous=True)
    assert contiguous == (ROOT,)  # rank 1 needs rank 0, which alone brings nothing


def test_the_same_trace_gives_the_same_frontier() -> None:
    trees = frontier(by_chance(), 16)
    assert trees == frontier(by_chance(), 16)
    assert {tree.depth for tree in trees} == {0, 1, 2, 3}
    assert [tree.num_nodes for tree in trees] == sorted(tree.num_nodes for tree in trees)
    assert len(set(trees)) == len(trees)
