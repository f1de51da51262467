"""Fitting what a policy decides by: replay and times on calibration rows, never by hand.

Knows: options of a bank or of sizes, scores. Does not know: policies as they run.

Every fit also tries the best single option, and is never slower than it on its own rows. What it is
worth on others, `compare.py` says. Runs that are tried are charged for their switches; what is
worth most at one start, or in one bin of a score, is chosen without them.

Dimension key: N starts · O options · B bins · C settings side by side.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.chooser import ExpectedAccept, Hysteresis, Ladder
from entmtp.calibrate.monotone import Floats, bins_of, quantile_edges, rising_means
from entmtp.calibrate.options import Options
from entmtp.calibrate.scores import Score
from entmtp.calibrate.walk import Places, row_ends, rows_of

NUM_BINS = 32
"""Of a score, for the ladder"""
NUM_ACCEPT_BINS = 16
"""Of a score, for expected acceptance"""
NUM_TAUS = 16
"""Of a score, for hysteresis"""
MIN_STARTS = 40
"""In a bin: with few rows, fewer bins"""
MAX_PAIRS = 12
"""Of options, for hysteresis"""
NUM_ROUNDS = 6
"""A choice changes which starts are visited; so fitting and walking take turns"""


class Settled(NamedTuple):
    """A choice by worth, at the rate that it reaches itself."""

    choice: Places  # [N]
    tokens_per_second: float


def best_option(options: Options) -> Settled:
    """The fastest single option, always; ties to the first."""
    num_starts, num_options = options.accepted.shape
    rates = [options.tokens_per_second(np.full(num_starts, place)) for place in range(num_options)]
    place = int(np.argmax(rates))
    return Settled(np.full(num_starts, place), rates[place])


def settle(options: Options, expected: Floats) -> Settled:
    """Take the most of `1 + expected - λ · seconds` at each start, with λ the rate so reached.

    Args:
        expected: accepted drafts `[N, O]`.
    """
    best = best_option(options)
    rate = best.tokens_per_second
    for _ in range(NUM_ROUNDS):
        choice = (expected - rate * options.seconds).argmax(axis=1)
        reached = options.tokens_per_second(choice)
        best = max(best, Settled(choice, reached), key=lambda one: one.tokens_per_second)
        if reached == rate:
            break
        rate = reached
    return best


def fit_ladder(options: Options, score: Score) -> Ladder:
    """EntMTP-l: bands of the score, one for each option in turn; some may be empty.

    Exact for given visited starts and rate: the most worth of all ways to give each bin of the
    score an option, never a smaller one to a higher bin.
    """
    edges = _edges(score.values[_starts(options)], NUM_BINS)
    bins = bins_of(score.values, edges)
    best = best_option(options)
    option_of = np.full(len(edges) + 1, best.choice[0] if len(best.choice) else 0)
    latest, top = best, best.tokens_per_second
    for _ in range(NUM_ROUNDS):
        assigned = _rising_options(_worth_by_bin(options, latest, bins))
        choice = assigned[bins]
        latest = Settled(choice, options.tokens_per_second(choice))
        if latest.tokens_per_second <= top:
            break
        option_of, top = assigned, latest.tokens_per_second
    return Ladder(score.name, _thresholds(option_of, edges, score.values, options.seconds.shape[1]))


def ladder_choice(ladder: Ladder, values: Floats) -> Places:
    """The place in the bank `[N]` for each value of the score."""
    return bins_of(values, ladder.thresholds)


def fit_hysteresis(options: Options, score: Score) -> Hysteresis:
    """EntMTP-tau: pairs of options, and every pair of thresholds of a grid; ties to the first.

    Only the pairs that one threshold does most for are tried in full.
    """
    edges = _edges(score.values[_starts(options)], NUM_TAUS)
    # The ends stand for always and never.
    taus = (float(score.values.min()) - 1, *edges, float(score.values.max()))
    grid = np.array([(on, off) for on in taus for off in taus if off <= on])
    fastest = np.inf
    best = Hysteresis(score.name, 0, 0, taus[0], taus[0])
    for small, big in _likely_pairs(options, bins_of(score.values, edges)):
        trial = Hysteresis(score.name, small, big, 0.0, 0.0)
        seconds = hysteresis_seconds(options, score.values, trial, grid).sum(axis=1)
        place = int(seconds.argmin())
        if seconds[place] < fastest:
            fastest = seconds[place]
            on, off = grid[place].tolist()
            best = Hysteresis(score.name, small, big, on, off)
    return best


def _likely_pairs(options: Options, bins: Places) -> list[tuple[int, int]]:
    """Up to `MAX_PAIRS` pairs, by the most worth that one threshold between bins brings."""
    best = best_option(options)
    sums = _worth_by_bin(options, best, bins)
    from_below = np.concatenate([np.zeros((1, sums.shape[1])), np.cumsum(sums, axis=0)])
    from_above = sums.sum(axis=0) - from_below
    pairs = list(combinations(range(sums.shape[1]), 2))
    worth = {(a, b): float((from_below[:, a] + from_above[:, b]).max()) for a, b in pairs}
    return sorted(pairs, key=lambda pair: (-worth[pair], pair))[:MAX_PAIRS]


def _worth_by_bin(options: Options, settled: Settled, bins: Places) -> Floats:
    """The sum of `tokens - λ · seconds` of each option, `[B, O]`, at the starts of a run."""
    at = options.visited(settled.choice)
    worth = (options.accepted + 1 - settled.tokens_per_second * options.seconds)[at]
    sums = np.zeros((int(bins.max(initial=0)) + 1, worth.shape[1]))
    np.add.at(sums, bins[at], worth)
    return sums


def hysteresis_seconds(
    options: Options, values: Floats, rule: Hysteresis, taus: Floats | None = None
) -> Floats:
    """Seconds `[C, R]` of whole runs, state new for each row.

    Args:
        taus: `[C, 2]` of tau_on and tau_off to try in the place of the rule's.
    """
    pairs = np.array([[rule.tau_on, rule.tau_off]]) if taus is None else taus
    on, off = pairs.T
    row_of = rows_of(options.trace, np.arange(len(values)))
    is_big = np.zeros((len(pairs), options.trace.num_rows), dtype=np.bool_)

    def choose(runs: Places, starts: Places) -> Places:
        rows = row_of[starts]
        above = values[starts] > np.where(is_big[runs, rows], off[runs], on[runs])
        is_big[runs, rows] = above
        return np.where(above, rule.big, rule.small)

    return options.run(choose, len(pairs))


def accept_tables(options: Options, score: Score, at: NDArray[np.bool_]) -> ExpectedAccept:
    """For each option, mean accepted drafts by bins of the score, never falling, at some starts.

    Its rate is that of the best single option.
    """
    edges, levels = accept_levels(options.accepted[at], score.values[at])
    rate = best_option(options).tokens_per_second
    return ExpectedAccept(score.name, edges, levels, rate)


def accept_levels(
    accepted: Places, values: Floats
) -> tuple[tuple[float, ...], tuple[tuple[float, ...], ...]]:
    """Bins of `values` `[N]`, and of each option the mean of `accepted` `[N, O]` in each."""
    edges = _edges(values, NUM_ACCEPT_BINS)
    bins = bins_of(values, edges)
    columns = accepted.T.astype(np.float64)
    return edges, tuple(tuple(rising_means(bins, one, len(edges) + 1)) for one in columns)


def fit_expected(options: Options, score: Score) -> ExpectedAccept:
    """Tables from the starts that choosing by these tables visits, and the rate so reached."""
    latest = best_option(options)
    best = None
    for _ in range(NUM_ROUNDS):
        tables = accept_tables(options, score, options.visited(latest.choice))
        latest = settle(options, expected_accept(tables, score.values))
        if best is not None and latest.tokens_per_second <= best.tokens_per_second:
            break
        best = replace(tables, tokens_per_second=latest.tokens_per_second)
    assert best is not None
    return best


def expected_accept(model: ExpectedAccept, values: Floats) -> Floats:
    """Expected accepted drafts `[N, O]` of each option for each value of the score."""
    return np.array(model.levels).T[bins_of(values, model.edges)]


def _edges(values: Floats, num_bins: int) -> tuple[float, ...]:
    return quantile_edges(values, max(1, min(num_bins, len(values) // MIN_STARTS)))


def _starts(options: Options) -> Places:
    """Where a step may begin at all."""
    return np.flatnonzero(np.arange(len(options.accepted)) < row_ends(options.trace))


def _rising_options(sums: Floats) -> Places:  # [B, O]
    """For each bin an option, none smaller than the bin below has, of the largest sum."""
    table = np.zeros_like(sums)
    for place, row in enumerate(sums):
        table[place] = row + (np.maximum.accumulate(table[place - 1]) if place else 0.0)
    chosen = np.zeros(len(sums), dtype=np.int64)
    most = sums.shape[1]
    for place in range(len(sums) - 1, -1, -1):
        chosen[place] = int(table[place, :most].argmax())
        most = int(chosen[place]) + 1
    return chosen


def _thresholds(
    option_of: Places, edges: tuple[float, ...], values: Floats, num_options: int
) -> tuple[float, ...]:
    """Strictly rising ones that give each bin its option; an empty band is a hair wide."""
    borders = [float(values.min()) - 1, *edges, float(values.max()) + 1]
    thresholds: list[float] = []
    for option in range(1, num_options):
        border = borders[int(np.searchsorted(option_of, option))]
        if thresholds and border <= thresholds[-1]:
            border = float(np.nextafter(thresholds[-1], np.inf))
        thresholds.append(border)
    return tuple(thresholds)
