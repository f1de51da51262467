"""The paper's construction against a plain reading of it, and what its score gets wrong."""

from __future__ import annotations

import numpy as np
import pytest

from entmtp.calibrate.greedy import grow, grow_all, replay_rollout
from entmtp.calibrate.recalibrate import (
    acceptance_frontier,
    mean_accepted,
    published_frontier,
    recalibrate,
)
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.calibrate.walk import accepted_at, visited
from entmtp.trees import Tree, chain
from made_traces import by_chance, by_hand


def plain_reading(trace: RankTrace, max_depth: int, max_drafts: int) -> list[tuple[Tree, float]]:
    """METHOD §1.3 item 1, word for word: every candidate scored as a tree of its own."""
    tree = Tree.from_paths([(0,)])
    grown = [(tree, mean_accepted(trace, tree))]
    while tree.num_draft_tokens < max_drafts:
        starts = visited(trace, accepted_at(trace, tree))
        candidates = []
        for parent in (path for path in tree.paths if len(path) < max_depth):
            rank = sum(path[:-1] == parent for path in tree.paths if path)
            path = (*parent, rank)
            wider = Tree.from_paths([*tree.paths, path])
            score = accepted_at(trace, wider)[starts].mean()
            candidates.append((-score, sum(path), len(path), path, wider))
        score, *_, tree = min(candidates)
        grown.append((tree, -score))
    return grown


@pytest.mark.parametrize("max_depth", [1, 2, 3])
def test_growth_is_the_plain_reading(max_depth: int) -> None:
    trace = by_chance(num_rows=4, length=40)
    grown = grow(replay_rollout(trace), max_depth, max_drafts=12)
    for one, (tree, score) in zip(grown, plain_reading(trace, max_depth, 12), strict=True):
        assert one.tree == tree
        assert one.biased_mean_accepted == pytest.approx(score)


def test_ties_go_to_smaller_ranks_and_then_to_the_shallower() -> None:
    nothing = by_hand([[9, 9, 9]] * 8)
    grown = grow(replay_rollout(nothing), 3, max_drafts=5)
    # Nothing ever helps. Sums of ranks 0: the chain; then 1: the shallowest first.
    order = [(0,), (0, 0), (0, 0, 0), (1,), (0, 1)]
    assert grown[-1].tree == Tree.from_paths(order)
    assert [one.tree.num_draft_tokens for one in grown] == [1, 2, 3, 4, 5]


def test_growth_ends_at_the_limit_and_where_no_child_is_left() -> None:
    trace = by_chance(num_rows=2, length=30)
    runs = grow_all(replay_rollout(trace), 2)
    assert [len(run) for run in runs] == [89, 89]
    assert [run[-1].tree.depth for run in runs] == [1, 2]
    wide = grow(replay_rollout(trace), 1, max_drafts=500)
    assert wide[-1].tree.num_draft_tokens == 100


def test_a_run_of_hits_makes_the_score_optimistic() -> None:
    # Rank 1 twice in a row: the chain stops at both and gains at both, the pair jumps one.
    trace = by_hand([[1], [1], [9], [9], [MISS]])
    _, pair = recalibrate(trace, grow(replay_rollout(trace), 1, max_drafts=2))
    assert pair.tree == Tree.from_paths([(0,), (1,)])
    assert pair.biased_mean_accepted == pytest.approx(2 / 4)
    assert pair.true_mean_accepted == pytest.approx(1 / 3)
    assert pair.bias > 0


def test_jumping_what_accepts_little_makes_it_too_low() -> None:
    trace = by_hand([[1], [9], [1], [9], [9], [MISS]])
    _, pair = recalibrate(trace, grow(replay_rollout(trace), 1, max_drafts=2))
    assert pair.biased_mean_accepted == pytest.approx(2 / 5)
    assert pair.true_mean_accepted == pytest.approx(2 / 3)


def test_the_first_tree_has_no_bias_and_later_ones_have() -> None:
    trace = by_chance()
    first, *later = recalibrate(trace, grow(replay_rollout(trace), 3))
    assert first.bias == pytest.approx(0)
    assert first.tree == chain(1)
    assert np.abs([one.bias for one in later]).max() > 0.005


def test_the_frontier_rises_and_keeps_each_tree_once() -> None:
    runs = grow_all(replay_rollout(by_chance()), 3)
    for run in runs:
        scores = [one.biased_mean_accepted for one in acceptance_frontier(run)]
        assert scores == sorted(set(scores))
    union = published_frontier(runs)
    assert len({one.tree for one in union}) == len(union)
    assert [one.tree.num_nodes for one in union] == sorted(one.tree.num_nodes for one in union)
    assert {one.tree for one in acceptance_frontier(runs[1])} <= {one.tree for one in union}
