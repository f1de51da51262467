"""Policies by replay, each row judged with what was fitted without it.

Knows: fits, traces, times. Does not know: policies as they run.

The rows are halved; everything, the bank and the best static tree included, is chosen on one half
and replayed on the other, and the other way round. A gain is over that best static tree on the
same rows, with an interval from rows drawn again. Simple choosers are charged for their switches,
which they ignore where they choose, and for what they look at.

Dimension key: R rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.fit import (
    best_option,
    expected_accept,
    fit_expected,
    fit_hysteresis,
    fit_ladder,
    hysteresis_seconds,
    ladder_choice,
)
from entmtp.calibrate.intervals import half_width, redraws
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.options import Options, bank_options, fastest, greedy
from entmtp.calibrate.perstep import worths
from entmtp.calibrate.scores import Score, scores
from entmtp.calibrate.sizes import fit_per_step, size_options
from entmtp.calibrate.stages import (
    fit_staged_accept,
    fit_staged_nodes,
    replay_staged_accept,
    replay_staged_nodes,
)
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import halves, row_tokens
from entmtp.scheduler.times import StepTimes
from entmtp.trees import Tree

MakeBank = Callable[[RankTrace], Sequence[Tree]]


class Replayed(NamedTuple):
    """A way to choose trees, judged on rows that it was not fitted on."""

    name: str
    """`static`, `ladder`, `hysteresis`, `throughput`, `throughput-stops`, `per-step`,
    `per-step-stops`, or a bound of `oracle.py`"""
    score: str
    """What it looks at, if anything"""
    tokens_per_second: float
    gain: float
    """Over the best static tree; 0.05 for 5 % more"""
    low: float | None
    """Of the gain's 95 % interval; None where there are too few rows"""
    high: float | None


def compare(
    trace: RankTrace,
    times: StepTimes,
    make_bank: MakeBank,
    score_names: Sequence[str],
    seed: int = 0,
) -> tuple[Replayed, ...]:
    """Every policy with every score, judged crosswise.

    Raises:
        BadInput: there are fewer than two rows with a step.
    """
    one, other = halves(trace, seed)
    seconds: dict[tuple[str, str], list[Floats]] = {}
    for fitted_on, judged_on in ((one, other), (other, one)):
        for key, rows in _judge(fitted_on, judged_on, times, make_bank, score_names):
            seconds.setdefault(key, []).append(rows)
    tokens = int(row_tokens(trace).sum())
    joined = {key: np.concatenate(rows) for key, rows in seconds.items()}
    base = joined["static", ""]
    weights = redraws(int((base > 0).sum()), seed)
    return tuple(replayed(key, rows, base, tokens, weights) for key, rows in joined.items())


def _judge(
    fitted_on: RankTrace,
    judged_on: RankTrace,
    times: StepTimes,
    make_bank: MakeBank,
    score_names: Sequence[str],
) -> Iterator[tuple[tuple[str, str], Floats]]:
    """Names, and seconds of each row judged."""
    bank = make_bank(fitted_on)
    plain = bank_options(judged_on, bank, times)
    static = best_option(bank_options(fitted_on, bank, times)).choice[0]
    everywhere = np.full(len(judged_on.ranks), static)
    yield ("static", ""), plain.row_seconds(everywhere)
    free = replace(plain, switch_seconds=0.0)  # a bound is charged for nothing
    for bound, choose in (("bank_this_step", greedy), ("bank_perfect", fastest)):
        yield (bound, ""), free.row_seconds(choose(free))
    for name in score_names:
        known, found = scores(fitted_on)[name], scores(judged_on)[name]
        fit_options, options = (
            bank_options(trace, bank, times, known.levels, reads_root=known.reads_root)
            for trace in (fitted_on, judged_on)
        )
        yield from _with_score(fit_options, known, options, found)
    staged = fit_staged_accept(fitted_on, times, bank)
    yield ("throughput-stops", ""), replay_staged_accept(staged, judged_on, times, bank)
    nodes = fit_staged_nodes(fitted_on, times)
    yield ("per-step-stops", ""), replay_staged_nodes(nodes, judged_on, times)
    values = fit_per_step(fitted_on, times)
    sized = size_options(judged_on, times, worths(judged_on, values))
    worth = sized.expected - values.tokens_per_second * sized.options.seconds
    yield ("per-step", ""), sized.options.row_seconds(worth.argmax(axis=1))


def _with_score(
    fit_options: Options, known: Score, options: Options, found: Score
) -> Iterator[tuple[tuple[str, str], Floats]]:
    ladder = fit_ladder(fit_options, known)
    choice = ladder_choice(ladder, found.values)
    yield ("ladder", known.name), options.row_seconds(choice)
    rule = fit_hysteresis(fit_options, known)
    yield ("hysteresis", known.name), hysteresis_seconds(options, found.values, rule)[0]
    model = fit_expected(fit_options, known)
    worth = expected_accept(model, found.values) - model.tokens_per_second * options.seconds
    yield ("throughput", known.name), options.row_seconds(worth.argmax(axis=1))


def replayed(
    key: tuple[str, str], seconds: Floats, base: Floats, tokens: int, weights: Floats
) -> Replayed:
    """What seconds of each row mean beside those of the best static tree.

    A row without a step takes no time and says nothing.

    Args:
        key: name and score.
        tokens: of all rows.
        weights: `[B, R]` redraws of the rows that have steps.
    """
    used = base > 0
    seconds, base = seconds[used], base[used]
    gain = base.sum() / seconds.sum()
    half = half_width(np.log((weights @ base) / (weights @ seconds)), len(seconds))
    bounds = [None if half is None else float(gain * np.exp(s * half)) - 1 for s in (-1, 1)]
    return Replayed(*key, float(tokens / seconds.sum()), float(gain) - 1, bounds[0], bounds[1])
