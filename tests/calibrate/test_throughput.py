"""Predicted tokens a second, how sure they are, and the banks that follow."""

from __future__ import annotations

import math
from dataclasses import astuple
from itertools import pairwise

import numpy as np
import pytest

from entmtp.calibrate.best import best_trees, frontier
from entmtp.calibrate.intervals import half_width, redraws, student_quantile
from entmtp.calibrate.throughput import evaluate, judge, published_bank, sure_bank
from entmtp.calibrate.trace import MISS
from entmtp.calibrate.walk import take_rows
from entmtp.trees import ROOT, Tree, chain, full
from made_traces import FLAT, RISING, by_chance, by_hand


def test_tokens_a_second_by_hand() -> None:
    trace = by_hand([[0], [9], [9], [9], [MISS]], [[0], [0], [0], [MISS]], [[MISS]])
    one = evaluate(trace, [chain(1)], RISING).best
    # Rows of 4 and 3 tokens behind the first; steps at 0, 2, 3 and at 0, 2.
    assert one.mean_acceptance_length == pytest.approx(7 / 5)
    assert one.step_seconds == pytest.approx(RISING.step(2, 1))
    assert one.tokens_per_second == pytest.approx(7 / 5 / RISING.step(2, 1))
    assert (one.low, one.high) == (None, None)


def test_other_times_on_the_same_rows_are_another_price_of_the_same_steps() -> None:
    trace = by_chance(num_rows=12)
    trees = [ROOT, chain(1), full(2, 2)]
    repriced, anew = evaluate(trace, trees, FLAT).repriced(RISING), evaluate(trace, trees, RISING)
    for one, other in zip(repriced.predictions, anew.predictions, strict=True):
        assert one.tree == other.tree
        assert astuple(one)[1:] == pytest.approx(astuple(other)[1:])
    assert np.allclose(repriced.samples, anew.samples)
    assert repriced.num_rows == anew.num_rows == 12
    few = by_hand([[0], [9], [MISS]])
    assert evaluate(few, trees, FLAT).repriced(RISING).best.low is None


def test_student_quantiles() -> None:
    table = {3: 3.182, 4: 2.776, 9: 2.262, 30: 2.042, 1000: 1.962}
    for degrees, quantile in table.items():
        assert student_quantile(degrees) == pytest.approx(quantile, rel=0.01)


def test_intervals_are_wider_with_fewer_rows_and_hold_the_truth() -> None:
    whole = by_chance(num_rows=320)
    tree = full(2, 2)
    truth = evaluate(whole, [tree], RISING).best.tokens_per_second
    inside, widths = 0, {5: 0.0, 40: 0.0}
    for first in range(0, 320, 40):
        for count in widths:
            rows = take_rows(whole, range(first, first + count))
            one = evaluate(rows, [tree], RISING, seed=first).best
            assert one.low is not None
            assert one.high is not None
            inside += one.low < truth < one.high
            widths[count] += one.high - one.low
    assert inside >= 14  # of 16
    assert widths[5] > 2 * widths[40]


def test_redraws_are_seeded() -> None:
    assert np.array_equal(redraws(9, 1), redraws(9, 1))
    assert not np.array_equal(redraws(9, 1), redraws(9, 2))
    assert half_width(np.arange(9.0), 3) is None
    # Four rows: deviation 1, n / (n - 1) in the variance, t of 3 degrees.
    assert half_width(np.array([-1.0, 1.0]), 4) == pytest.approx(3.182 * math.sqrt(4 / 3), rel=0.01)


def test_the_published_bank_rises_in_size_and_speed() -> None:
    evaluation = evaluate(by_chance(), frontier(by_chance(), 24), RISING)
    bank = published_bank(evaluation)
    assert bank[0].tree == ROOT
    assert all(one.tree.num_nodes < other.tree.num_nodes for one, other in pairwise(bank))
    assert all(one.tokens_per_second < other.tokens_per_second for one, other in pairwise(bank))
    assert bank[-1] == evaluation.best
    kept = {one.tree for one in bank}
    for one in evaluation.predictions:
        smaller = [o for o in bank if o.tree.num_nodes <= one.tree.num_nodes]
        assert one.tree in kept or one.tokens_per_second <= smaller[-1].tokens_per_second + 1e-9


def test_thin_evidence_never_buys_a_larger_tree() -> None:
    trace = by_chance(num_rows=40)
    trees = best_trees(trace, 32)
    sizes = {}
    for count in (3, 6, 40):
        evaluation = evaluate(take_rows(trace, range(count)), trees, RISING)
        bank = sure_bank(evaluation)
        assert set(bank) <= set(evaluation.predictions)
        sizes[count] = bank[-1].tree.num_nodes
        assert sizes[count] <= published_bank(evaluation)[-1].tree.num_nodes
    assert sizes[3] == 1  # nothing can be said of three prompts
    assert sizes[3] < sizes[6] <= sizes[40]


def test_a_tree_that_is_sometimes_better_is_not_surely_so() -> None:
    good, bad = [[0], [0], [0], [0], [MISS]], [[9], [9], [9], [9], [MISS]]
    evaluation = evaluate(by_hand(good, *[bad] * 7), [ROOT, chain(1)], FLAT)
    assert evaluation.best.tree == chain(1)
    assert not evaluation.is_surely_faster(1, 0)
    assert sure_bank(evaluation)[-1].tree == ROOT
    always = evaluate(by_hand(*[good] * 8), [ROOT, chain(1)], FLAT)
    assert always.is_surely_faster(1, 0)
    assert not always.is_surely_faster(0, 1)


def test_what_is_chosen_on_one_half_is_judged_on_the_other() -> None:
    trace = by_chance(num_rows=8, length=30)
    seen = []

    def best_of(half: object) -> Tree:
        seen.append(half)
        return evaluate(half, frontier(half, 64), FLAT).best.tree  # type: ignore[arg-type]

    both = judge(trace, FLAT, best_of)
    assert [half.num_rows for half in seen] == [4, 4]  # type: ignore[attr-defined]
    # A large tree fitted to four short rows knows them better than others.
    gain = sum(math.log(j.expected.tokens_per_second / j.found.tokens_per_second) for j in both)
    assert gain > 0


def test_no_rows_predict_plain_decoding() -> None:
    evaluation = evaluate(by_hand([[MISS]]), [ROOT, chain(1)], RISING)
    assert evaluation.best.tree == ROOT
    assert evaluation.num_rows == 0
