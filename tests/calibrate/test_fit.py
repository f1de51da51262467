"""Fitted thresholds and tables against plain readings of their rules, and on other rows."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from entmtp.calibrate.association import associate, mutual_information
from entmtp.calibrate.best import best_trees
from entmtp.calibrate.chooser import Hysteresis
from entmtp.calibrate.compare import compare
from entmtp.calibrate.fit import (
    best_option,
    expected_accept,
    fit_expected,
    fit_hysteresis,
    fit_ladder,
    hysteresis_seconds,
    ladder_choice,
    settle,
)
from entmtp.calibrate.options import Options, bank_options
from entmtp.calibrate.perstep import worths
from entmtp.calibrate.scores import Score, scores
from entmtp.calibrate.sizes import fit_per_step, size_options
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import accepted_at, rows_of, visited
from entmtp.trees import ROOT, Tree, chain
from made_traces import RISING, by_chance


def bank_of(trace: RankTrace) -> list[Tree]:
    trees = best_trees(trace, 24)
    return [trees[place] for place in (0, 1, 3, 7, 15, 23)]


@pytest.fixture(scope="module")
def trace() -> RankTrace:
    return by_chance(num_rows=24)


@pytest.fixture(scope="module")
def options(trace: RankTrace) -> Options:
    return bank_options(trace, bank_of(trace), RISING)


def rate(options: Options, seconds: np.ndarray) -> float:
    return float(options.num_tokens / seconds.sum())


def test_a_run_is_charged_for_its_switches(trace: RankTrace, options: Options) -> None:
    dear = bank_options(trace, bank_of(trace), replace(RISING, switch_seconds=0.5))
    choice = np.arange(len(trace.ranks)) // 7 % 6
    starts = np.flatnonzero(options.visited(choice))
    sizes, rows = choice[starts], rows_of(trace, starts)
    switches = np.bincount(
        rows[1:], (np.diff(sizes) != 0) & (np.diff(rows) == 0), minlength=trace.num_rows
    )
    assert switches.sum() > 20
    more = dear.row_seconds(choice) - options.row_seconds(choice)
    np.testing.assert_allclose(more, 0.5 * switches, atol=1e-9)
    always = np.full(len(choice), 3)
    assert dear.row_seconds(always).tolist() == options.row_seconds(always).tolist()


def test_thresholds_part_further_where_switches_are_dear(
    trace: RankTrace, options: Options
) -> None:
    score = scores(trace)["g2"]
    rule = fit_hysteresis(options, score)
    for switch_seconds in (0.2, 50.0):
        times = replace(RISING, switch_seconds=switch_seconds)
        dear = bank_options(trace, bank_of(trace), times)
        own = fit_hysteresis(dear, score)
        seconds = [hysteresis_seconds(dear, score.values, one).sum() for one in (own, rule)]
        assert seconds[0] < seconds[1]
        assert rate(dear, seconds[0]) >= best_option(dear).tokens_per_second - 1e-9
    assert rate(dear, seconds[0]) == pytest.approx(best_option(dear).tokens_per_second)


@pytest.mark.parametrize("name", ["g1", "sum_g", "p0"])
def test_the_ladder_is_a_ladder_and_no_slower_than_one_tree(
    trace: RankTrace, options: Options, name: str
) -> None:
    score = scores(trace)[name]
    ladder = fit_ladder(options, score)
    assert len(ladder.thresholds) == 5
    assert all(one < other for one, other in pairwise(ladder.thresholds))
    choice = ladder_choice(ladder, score.values)
    places = [bisect_right(ladder.thresholds, value) for value in score.values]
    assert choice.tolist() == places
    assert options.tokens_per_second(choice) >= best_option(options).tokens_per_second


def test_a_score_that_says_something_is_worth_something(trace: RankTrace, options: Options) -> None:
    best = best_option(options).tokens_per_second
    score = scores(trace)["sum_g"]
    choice = ladder_choice(fit_ladder(options, score), score.values)
    assert options.tokens_per_second(choice) > 1.03 * best
    rule = fit_hysteresis(options, score)
    switched = rate(options, hysteresis_seconds(options, score.values, rule))
    assert switched > 1.02 * best
    assert fit_expected(options, score).tokens_per_second > 1.03 * best


def test_hysteresis_is_the_plain_reading_of_its_rule(trace: RankTrace, options: Options) -> None:
    values = scores(trace)["g2"].values
    rule = Hysteresis("g2", 1, 4, tau_on=0.5, tau_off=0.2)
    seconds = hysteresis_seconds(options, values, rule)[0]
    for row, starts in enumerate(trace.rows()):
        is_big, total, start = False, 0.0, starts.start
        while start < starts.stop - 1:
            if is_big and values[start] <= rule.tau_off:
                is_big = False
            elif not is_big and values[start] > rule.tau_on:
                is_big = True
            place = rule.big if is_big else rule.small
            total += options.seconds[start, place]
            start = min(start + 1 + int(options.accepted[start, place]), starts.stop - 1)
        assert seconds[row] == pytest.approx(total)


def test_no_other_pair_of_thresholds_of_the_grid_is_faster(
    trace: RankTrace, options: Options
) -> None:
    score = scores(trace)["sum_g"]
    rule = fit_hysteresis(options, score)
    assert rule.tau_off <= rule.tau_on
    fitted = hysteresis_seconds(options, score.values, rule).sum()
    generator = np.random.default_rng(0)
    for _ in range(100):
        small, big = sorted(generator.choice(6, 2, replace=False).tolist())
        off, on = np.sort(generator.choice(score.values, 2)).tolist()
        other = Hysteresis("sum_g", small, big, on, off)
        assert hysteresis_seconds(options, score.values, other).sum() > 0.995 * fitted


def test_expected_acceptance_rises_and_is_what_is_accepted(
    trace: RankTrace, options: Options
) -> None:
    score = scores(trace)["sum_g"]
    model = fit_expected(options, score)
    assert len(model.levels) == 6
    for row in model.levels:
        assert len(row) == len(model.edges) + 1
        assert all(one <= other for one, other in pairwise(row))
    expected = expected_accept(model, score.values)
    assert np.abs(expected.mean(axis=0) - options.accepted.mean(axis=0)).max() < 0.25
    settled = settle(options, expected)
    assert settled.tokens_per_second >= model.tokens_per_second - 1e-9


def test_knowing_everything_settles_at_the_greedy_oracle(options: Options) -> None:
    settled = settle(options, options.accepted.astype(np.float64))
    again = (options.accepted - settled.tokens_per_second * options.seconds).argmax(axis=1)
    reached = options.tokens_per_second(again)
    assert reached == pytest.approx(settled.tokens_per_second, rel=0.02)
    assert reached > 1.1 * best_option(options).tokens_per_second


def test_sizes_by_worth_beat_every_fixed_size(trace: RankTrace) -> None:
    values = fit_per_step(trace, RISING)
    sized = size_options(trace, RISING, worths(trace, values))
    assert values.tokens_per_second > 1.01 * best_option(sized.options).tokens_per_second
    assert values.sizes[0] == 1
    assert len(values.sizes) <= 8
    assert list(values.sizes) == sorted(set(values.sizes))
    few = size_options(trace, RISING, worths(trace, values), sizes=(1, 8, 16, 999))
    assert few.expected.shape[1] == 3
    assert (np.diff(few.expected) > 0).all()


def test_what_is_fitted_on_one_half_holds_on_the_other(trace: RankTrace) -> None:
    found = {(one.name, one.score): one for one in compare(trace, RISING, bank_of, ["p0", "sum_g"])}
    assert found["static", ""].gain == 0
    for name in ("ladder", "hysteresis", "throughput"):
        good, useless = found[name, "sum_g"], found[name, "p0"]
        assert good.low is not None
        assert good.low > 0
        assert abs(useless.gain) < 0.04
        assert good.gain > useless.gain
    assert found["per-step", ""].gain > found["throughput", "sum_g"].gain
    assert found["bank_perfect", ""].gain > found["bank_this_step", ""].gain > 0.1


def test_signals_are_told_from_noise(trace: RankTrace) -> None:
    tree = chain(3)
    accepted = accepted_at(trace, tree)
    starts = visited(trace, accepted)
    known = scores(trace)
    good, noise = (associate(known[name], accepted, starts) for name in ("sum_g", "p0"))
    assert good.pearson_r > 0.4
    assert abs(noise.pearson_r) < 0.1
    assert good.mutual_information > 0.06
    assert noise.mutual_information < 0.03
    still = Score("still", np.zeros(len(accepted)), 0)
    assert associate(still, accepted, starts) == ("still", 0.0, 0.0)


def test_mutual_information_of_equals_is_their_entropy() -> None:
    lengths = np.arange(4).repeat(500)
    assert mutual_information(lengths.astype(float), lengths) == pytest.approx(np.log(4), abs=0.01)


def test_a_bank_of_one_tree_has_nothing_to_choose() -> None:
    trace = by_chance(num_rows=4)
    options = bank_options(trace, [ROOT], RISING)
    score = scores(trace)["g1"]
    assert fit_ladder(options, score).thresholds == ()
    assert fit_hysteresis(options, score).big == 0
    assert set(fit_expected(options, score).levels[0]) == {0.0}
