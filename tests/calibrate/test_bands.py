"""Trees for bands of a score, and the banks made of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from entmtp.calibrate.bands import best_in_bands
from entmtp.calibrate.banks import MAX_TREES, as_published, for_choosing
from entmtp.calibrate.best import frontier
from entmtp.calibrate.greedy import grow_all, replay_rollout
from entmtp.calibrate.options import bank_options
from entmtp.calibrate.scores import Score, scores
from entmtp.calibrate.throughput import evaluate
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.scheduler.times import StepTimes
from entmtp.trees import ROOT, Tree, chain
from made_traces import FLAT, RISING, by_chance, by_hand


@pytest.fixture(scope="module")
def trace() -> RankTrace:
    return by_chance(num_rows=24)


def test_each_band_gets_what_is_right_there() -> None:
    # Where the score is high rank 1 is right, then rank 0; where it is low, rank 2.
    sure, unsure = [[1, 0], [MISS] * 2, [MISS] * 2], [[2, MISS], [MISS] * 2]
    trace = by_hand([*sure * 5, *unsure * 5, [MISS, MISS]])
    values = np.array([1.0] * 15 + [0.0] * 10 + [0.0])
    banded = best_in_bands(trace, RISING, Score("known", values, 0), 2)
    low, high = banded.trees
    assert low == Tree.from_paths([(2,)])
    assert high == Tree.from_paths([(1,), (1, 0)])
    assert banded.choose(Score("known", values, 0)).tolist() == [1] * 15 + [0] * 11


def test_bands_beat_one_tree_and_outgrow_it(trace: RankTrace) -> None:
    best = evaluate(trace, frontier(trace), RISING).best
    score = scores(trace)["g1"]
    banded = best_in_bands(trace, RISING, score, 6)
    assert banded.tokens_per_second > 1.02 * best.tokens_per_second
    assert max(tree.num_nodes for tree in banded.trees) > best.tree.num_nodes
    options = bank_options(trace, banded.trees, RISING, score.levels)
    reached = options.tokens_per_second(banded.choose(score))
    assert reached == pytest.approx(banded.tokens_per_second)


def test_one_band_is_the_best_static_tree(trace: RankTrace) -> None:
    still = Score("still", np.zeros(len(trace.ranks)), 0)
    [tree] = best_in_bands(trace, RISING, still, 6).trees
    one, best = (evaluate(trace, trees, RISING).best for trees in ([tree], frontier(trace)))
    assert one.tokens_per_second > 0.985 * best.tokens_per_second


def test_levels_that_a_score_needs_are_part_of_the_price() -> None:
    trace = by_hand(*[[[0], *[[MISS]] * 3]] * 9)
    times = StepTimes((1, 64), (1.0, 1.0), (0.0, 0.1), 0.0)
    rates = {}
    for levels in (0, 1):
        score = Score("still", np.zeros(len(trace.ranks)), levels)
        banded = best_in_bands(trace, times, score, 1)
        assert banded.trees == (chain(1),)
        rates[levels] = banded.tokens_per_second
    # The one tree drafts a level anyway.
    assert rates == {0: pytest.approx(3 / 2 / 1.1), 1: pytest.approx(3 / 2 / 1.1)}
    unused = replace(times, draft_seconds=(0.0, 5.0))
    plain = [best_in_bands(trace, unused, replace(score, levels=n), 1) for n in (0, 1)]
    assert [one.tokens_per_second for one in plain] == [1.0, pytest.approx(3 / 2 / 6)]


def test_the_bank_to_choose_from(trace: RankTrace) -> None:
    bank = for_choosing(trace, RISING)
    assert bank == for_choosing(trace, RISING)
    assert bank[0] == ROOT
    assert len(set(bank)) == len(bank) <= MAX_TREES
    assert all(one.num_nodes <= other.num_nodes for one, other in pairwise(bank))
    best = evaluate(trace, frontier(trace), RISING).best.tree
    assert bank[-1].num_nodes > best.num_nodes


def test_a_path_seen_once_or_twice_is_no_evidence() -> None:
    rows = [[[rank], [MISS], [MISS]] for rank in (0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 8, 8)]
    trace = by_hand(*rows)
    still = Score("still", np.zeros(len(trace.ranks)), 0)
    [tree] = best_in_bands(trace, RISING, still, 1).trees
    assert tree == Tree.from_paths([(0,)])


def test_the_published_bank_is_of_greedily_grown_trees(trace: RankTrace) -> None:
    bank = as_published(trace, FLAT)
    grown = {one.tree for run in grow_all(replay_rollout(trace), 3) for one in run}
    assert set(bank) <= grown
    assert ROOT not in bank
    rates = [one.tokens_per_second for one in evaluate(trace, bank, FLAT).predictions]
    assert rates == sorted(set(rates))
