"""Replayed acceptance by hand, and the best static tree against all others."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest

from entmtp.train.replay import (
    MISS,
    best_static_tree,
    mean_acceptance_length,
    path_counts,
    replay_row,
    top_shares,
)
from entmtp.trees import Tree, chain


def test_a_row_is_walked_as_decoding_would() -> None:
    # Answer tokens 0 … 5; two heads. Starts visited: 0 (accepts 2), 3 (accepts none), 4 (one left).
    ranks = np.array([[0, 1], [9, 9], [9, 9], [1, 0], [0, MISS], [MISS, MISS]])
    run = replay_row(ranks, Tree.from_paths([[0], [0, 1]]).paths)
    assert (run.num_emitted, run.num_drafts) == (5, 3)
    assert run.mean_acceptance_length == pytest.approx(5 / 3)


def test_the_row_ends_a_step() -> None:
    sure = np.array([[0, 0], [0, 0], [0, MISS], [MISS, MISS]])
    run = replay_row(sure, chain(2).paths)
    assert (run.num_emitted, run.num_drafts) == (3, 1)
    assert replay_row(np.full((1, 2), MISS), chain(2).paths).num_drafts == 0


def test_the_most_frequent_paths_are_the_best_tree() -> None:
    generator = np.random.default_rng(0)
    traces = [generator.geometric(0.5, size=(40, 2)) - 1 for _ in range(5)]
    counts = path_counts(traces)
    best = best_static_tree(traces, 5)
    caught = sum(counts[path] for path in best.paths if path)
    singles = [(rank,) for rank in range(4)]
    paths = singles + [(*first, rank) for first, rank in product(singles, range(4))]
    for chosen in combinations(paths, 4):
        if all(len(path) == 1 or path[:1] in chosen for path in chosen):
            assert sum(counts[path] for path in chosen) <= caught
    assert best.num_nodes == 5
    assert mean_acceptance_length(traces, best) > mean_acceptance_length(traces, chain(1))


def test_shares_count_labels_and_not_the_end_of_a_row() -> None:
    traces = [np.array([[0, 2], [1, MISS], [MISS, MISS]])]
    assert top_shares(traces, (1, 3)) == [[0.5, 1.0], [0.0, 1.0]]
