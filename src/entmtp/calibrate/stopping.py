"""When to stop drafting: after each level, is the next one worth its time?

Knows: for every start, what would be verified after each level, and a number known by then. Does
not know: where those come from (`stages` of a bank or of a tree made for the step), policies.

Drafting goes on from level d while the number x_d is at least a threshold of that level. The last
threshold is fitted first: with all later ones in force, going on has brought so much at each
start, stopping so much; take the threshold that gives the largest sum. Level 0 asks whether to
draft at all.

Dimension key: N starts · K levels · O options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.chooser import Stops
from entmtp.calibrate.fit import best_option
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.options import Options
from entmtp.calibrate.walk import Places, row_ends

NUM_ROUNDS = 5
"""Of fitting and walking"""


class Stages(NamedTuple):
    """Stopping after 0, 1, … K levels as options, and what is known before each next level."""

    options: Options  # [N, K + 1]
    signals: Floats  # [N, K] larger is better


MakeStages = Callable[[float], Stages]
"""Stages at a rate λ: what is verified depends on what time is worth."""


def levels_of(stops: Stops, signals: Floats) -> Places:  # [N, K]
    """How many levels are drafted from each start, `[N]`."""
    goes_on = signals >= np.array(stops.thresholds)
    levels: Places = np.cumprod(goes_on, axis=1).sum(axis=1)
    return levels


def fit_stops(make_stages: MakeStages, rate: float) -> Stops:
    """Thresholds for each level; never slower, here, than any fixed number of levels at `rate`.

    Args:
        rate: λ to begin with.
    """
    stages = make_stages(rate)
    latest, reached = best_option(stages.options)
    best = _always(stages, int(latest[0]) if len(latest) else 0, reached)
    for _ in range(NUM_ROUNDS):
        at = stages.options.visited(latest)
        stops = Stops(_thresholds(stages, at, rate), rate)
        stages = make_stages(rate)
        latest = levels_of(stops, stages.signals)
        reached = stages.options.tokens_per_second(latest)
        if reached > best.tokens_per_second:
            best = Stops(stops.thresholds, reached)
        if reached == rate:
            break
        rate = reached
    return best


def _always(stages: Stages, levels: int, reached: float) -> Stops:
    low, high = _ends(stages.signals)
    num_levels = stages.signals.shape[1]
    return Stops(tuple(low if d < levels else high for d in range(num_levels)), reached)


def _thresholds(stages: Stages, at: np.ndarray, rate: float) -> tuple[float, ...]:
    """Backwards over the levels, from what stopping and going on bring at the starts `at`."""
    options = stages.options
    is_start = np.arange(len(at)) < row_ends(options.trace)
    worth = (options.accepted - rate * options.seconds)[at & is_start]
    signals = stages.signals[at & is_start]
    low, high = _ends(stages.signals)
    goes_on = worth[:, -1]
    found: list[float] = []
    for level in range(signals.shape[1] - 1, -1, -1):
        threshold = best_threshold(signals[:, level], goes_on - worth[:, level], low, high)
        found.append(threshold)
        goes_on = np.where(signals[:, level] >= threshold, goes_on, worth[:, level])
    return tuple(reversed(found))


def best_threshold(signal: Floats, gain: Floats, low: float, high: float) -> float:
    """The threshold with the largest sum of gains at or above it; `high` where none gains."""
    order = np.argsort(-signal, kind="stable")
    sums = np.cumsum(gain[order])
    falls = np.append(np.diff(signal[order]) < 0, True)  # a threshold parts no equals
    places = np.flatnonzero(falls)
    if not len(signal) or sums[places].max() <= 0:
        return high
    place = int(places[sums[places].argmax()])
    return low if place == len(signal) - 1 else float(signal[order][place])


def _ends(signals: Floats) -> tuple[float, float]:
    """Thresholds that stand for always and never."""
    if not signals.size:
        return 0.0, 0.0
    return float(signals.min()) - 1, float(signals.max()) + 1
