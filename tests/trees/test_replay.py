"""Replayed acceptance by hand, and the best static tree against all others."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from entmtp.train.judge import top_shares
from entmtp.trees import ROOT, Tree, chain, full
from entmtp.trees.replay import (
    MISS,
    RankRows,
    accepted_lengths,
    best_static_tree,
    matched_depths,
    mean_acceptance_length,
    path_counts,
    visited_starts,
)


def test_a_row_is_walked_as_decoding_would() -> None:
    # Answer tokens 0 … 5; two heads. Starts visited: 0 (accepts 2), 3 (accepts none), 4 (one left).
    ranks = np.array([[0, 1], [9, 9], [9, 9], [1, 0], [0, MISS], [MISS, MISS]])
    rows, tree = RankRows.of([ranks]), Tree.from_paths([[0], [0, 1]])
    accepted = accepted_lengths(rows, tree)
    assert accepted.tolist() == [2, 0, 0, 0, 0, 0]
    assert visited_starts(accepted, rows.row_starts).tolist() == [0, 3, 4]
    assert mean_acceptance_length(rows, tree) == pytest.approx(5 / 3)


def test_the_row_ends_a_step() -> None:
    sure = np.array([[0, 0], [0, 0], [0, MISS], [MISS, MISS]])
    assert mean_acceptance_length(RankRows.of([sure]), chain(2)) == 3
    # A last token that was drafted is said all the same, and no draft of it counts.
    assert accepted_lengths(RankRows.of([sure[1:]]), chain(2)).tolist() == [1, 0, 0]
    nothing = RankRows.of([np.full((1, 2), MISS)] * 3)
    assert mean_acceptance_length(nothing, chain(2)) == 0


def test_rows_do_not_see_one_another() -> None:
    generator = np.random.default_rng(1)
    traces = [generator.integers(0, 4, size=(length, 3)) for length in (1, 30, 2, 7, 1)]
    for tree in (ROOT, chain(3), full(2, 3), Tree.from_paths([[2], [2, 1], [2, 1, 3], [0]])):
        whole = RankRows.of(traces)
        accepted = accepted_lengths(whole, tree)
        visited = visited_starts(accepted, whole.row_starts)
        assert accepted[visited].tolist() == [n for each in traces for n in walked(each, tree)]


def walked(ranks: np.ndarray, tree: Tree) -> list[int]:
    """A row the slow way: the drafts that each step accepts."""
    start, accepted, last = 0, [], len(ranks) - 1
    while start < last:
        path = tuple(ranks[start].tolist())
        depth = max(d for d in range(len(path) + 1) if path[:d] in tree.paths)
        accepted.append(min(depth, last - start - 1))
        start += accepted[-1] + 1
    return accepted


def test_a_path_that_leaves_the_tree_does_not_come_back() -> None:
    tree = Tree.from_paths([[0], [1], [1, 0]])
    ranks = np.array([[5, 0], [0, 0], [1, 0], [1, 1], [MISS, 0]])
    assert matched_depths(ranks, tree).tolist() == [0, 1, 2, 1, 0]


def test_weights_count_starts() -> None:
    ranks = np.array([[0, 0], [0, 1], [1, MISS], [0, MISS]])
    weights = np.array([1.0, 0.0, 2.5, 0.0])
    assert path_counts(ranks) == {(0,): 3, (1,): 1, (0, 0): 1, (0, 1): 1}
    assert path_counts(ranks, weights) == {(0,): 1, (1,): 2.5, (0, 0): 1, (0, 1): 0}
    assert best_static_tree(ranks, 2).paths == ((), (0,))
    assert best_static_tree(ranks, 2, weights).paths == ((), (1,))


def test_the_most_frequent_paths_are_the_best_tree() -> None:
    generator = np.random.default_rng(0)
    traces = [generator.geometric(0.5, size=(40, 2)) - 1 for _ in range(5)]
    rows = RankRows.of(traces)
    counts = path_counts(rows.ranks)
    best = best_static_tree(rows.ranks, 5)
    caught = sum(counts[path] for path in best.paths if path)
    singles = [(rank,) for rank in range(4)]
    paths = singles + [(*first, rank) for first, rank in product(singles, range(4))]
    for chosen in combinations(paths, 4):
        if all(len(path) == 1 or path[:1] in chosen for path in chosen):
            assert sum(counts.get(path, 0) for path in chosen) <= caught
    assert best.num_nodes == 5
    assert mean_acceptance_length(rows, best) > mean_acceptance_length(rows, chain(1))


def test_shares_count_labels_and_not_the_end_of_a_row() -> None:
    traces = [np.array([[0, 2], [1, MISS], [MISS, MISS]])]
    assert top_shares(RankRows.of(traces), (1, 3)) == [[0.5, 1.0], [0.0, 1.0]]
