"""When to stop drafting: thresholds by hand, against a grid, and on other rows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from entmtp.calibrate.banks import for_choosing
from entmtp.calibrate.chooser import Stops
from entmtp.calibrate.options import Options
from entmtp.calibrate.perstep import worths
from entmtp.calibrate.sizes import fit_per_step, size_options
from entmtp.calibrate.stages import (
    fit_staged_accept,
    fit_staged_nodes,
    replay_staged_accept,
    replay_staged_nodes,
)
from entmtp.calibrate.stopping import Stages, best_threshold, fit_stops, levels_of
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import halves, row_tokens
from entmtp.scheduler.times import StepTimes
from made_traces import by_chance, by_hand

DEAR = StepTimes((1, 8, 16, 64), (1.0, 1.2, 1.5, 4.0), (0.0, 0.25, 0.5, 0.75), 0.1)
"""A level of the draft costs as much as ten more rows"""


def made_stages(trace: RankTrace, seed: int) -> Stages:
    """Two levels; the signal is what they bring, more or less."""
    generator = np.random.default_rng(seed)
    hits = generator.random((len(trace.ranks), 2)) < 0.5
    accepted = np.concatenate([np.zeros((len(hits), 1)), np.cumprod(hits, axis=1)], axis=1)
    accepted[:, 2] += accepted[:, 1]
    room = 58 - np.arange(len(hits)) % 60
    accepted = np.minimum(accepted, np.maximum(room, 0)[:, None]).astype(np.int64)
    seconds = np.array([1.0, 1.4, 1.8])
    signals = hits + generator.normal(0, 0.5, hits.shape)
    return Stages(Options.of(trace, accepted, seconds), signals)


def test_levels_end_at_the_first_no() -> None:
    stops = Stops((0.5, 0.2, 0.9), 1.0)
    signals = np.array([[0.5, 0.2, 0.9], [0.4, 1, 1], [1, 0.1, 1], [1, 1, 0.8]])
    assert levels_of(stops, signals).tolist() == [3, 0, 1, 2]


@pytest.mark.parametrize("seed", range(3))
def test_no_thresholds_of_a_grid_are_much_faster(seed: int) -> None:
    trace = by_chance(num_rows=20)
    stages = made_stages(trace, seed)
    stops = fit_stops(lambda rate: stages, 1.0)
    fitted = stages.options.tokens_per_second(levels_of(stops, stages.signals))
    assert fitted == pytest.approx(stops.tokens_per_second)
    grid = np.linspace(-1, 2, 13).tolist()
    others = [levels_of(Stops(pair, 1.0), stages.signals) for pair in product(grid, grid)]
    best = max(stages.options.tokens_per_second(levels) for levels in others)
    assert fitted > 0.99 * best
    fixed = [np.full(len(trace.ranks), levels) for levels in range(3)]
    assert fitted > 1.05 * max(stages.options.tokens_per_second(levels) for levels in fixed)


def test_a_level_is_drafted_for_what_a_later_one_brings() -> None:
    # The first level brings nothing; behind it is known where the second brings two drafts.
    trace = by_hand(*[[[9]] * 41] * 4)
    is_good = np.arange(41 * 4) % 2 == 0
    accepted = np.stack([0 * is_good, 0 * is_good, 2 * is_good], axis=1)
    signals = np.stack([np.ones(len(is_good)), is_good], axis=1)
    stages = Stages(Options.of(trace, accepted, np.array([1.0, 1.1, 2.4])), signals)
    stops = fit_stops(lambda rate: stages, 1.0)
    assert set(levels_of(stops, signals).tolist()) == {1, 2}


def test_a_threshold_parts_no_equals() -> None:
    signal, gain = np.array([1.0, 1.0, 1.0, 2.0]), np.array([5.0, -3.0, -3.0, 0.5])
    assert best_threshold(signal, gain, -9, 9) == 2.0
    assert best_threshold(signal, -gain, -9, 9) == -9
    assert best_threshold(signal, -np.abs(gain), -9, 9) == 9


def test_what_never_pays_is_never_drafted() -> None:
    trace = by_hand([[9]] * 9)
    none = np.zeros((9, 2), np.int64)
    stages = Stages(Options.of(trace, none, np.array([1.0, 1.1])), np.ones((9, 1)))
    stops = fit_stops(lambda rate: stages, 1.0)
    assert levels_of(stops, stages.signals).tolist() == [0] * 9
    sure = replace(stages.options, seconds=np.broadcast_to(np.array([1.1, 1.0]), (9, 2)))
    always = fit_stops(lambda rate: Stages(sure, stages.signals), 1.0)
    assert levels_of(always, stages.signals).tolist() == [1] * 9


def test_stopping_pays_where_levels_are_dear() -> None:
    """On rows that nothing was fitted on."""
    fit, judged = halves(by_chance(num_rows=60))
    tokens = row_tokens(judged).sum()
    nodes = fit_staged_nodes(fit, DEAR)
    staged = tokens / replay_staged_nodes(nodes, judged, DEAR).sum()
    whole = fit_per_step(fit, DEAR)
    sized = size_options(judged, DEAR, worths(judged, whole))
    worth = sized.expected - whole.tokens_per_second * sized.options.seconds
    assert staged > 1.05 * sized.options.tokens_per_second(worth.argmax(axis=1))
    bank = for_choosing(fit, DEAR)
    accept = fit_staged_accept(fit, DEAR, bank)
    assert [stage.score for stage in accept.stages] == ["p0", "g1", "g2", "g3"]
    assert {len(stage.levels) for stage in accept.stages} == {len(bank)}
    rate = tokens / replay_staged_accept(accept, judged, DEAR, bank).sum()
    assert rate == pytest.approx(accept.stops.tokens_per_second, rel=0.1)
    assert rate > 1.05 / DEAR.step(1, 0)
