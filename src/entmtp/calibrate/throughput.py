"""Tokens a second of trees, as a trace and the times of a step predict them, and banks of trees.

Knows: traces, times. Does not know: policies, signals.

Tokens a second are the mean acceptance length of a tree's own run over the time of its step. How
sure they are is told by drawing rows again; two trees are compared on the same redraws, so what
makes a prompt easy for both cancels.

Dimension key: T trees · R rows · B redraws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.intervals import half_width, redraws
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.recalibrate import TOLERANCE
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import accepted_at, halves, row_tokens, rows_of, visited
from entmtp.scheduler.times import StepTimes
from entmtp.trees import Tree


@dataclass(frozen=True)
class Prediction:
    """What a tree would bring, always used."""

    tree: Tree
    mean_acceptance_length: float
    """Bonus token included"""
    step_seconds: float
    tokens_per_second: float
    low: float | None
    """Of the 95 % interval over rows; None where there are too few of them"""
    high: float | None


@dataclass(frozen=True)
class Evaluation:
    """Predictions of several trees over the same rows."""

    predictions: tuple[Prediction, ...]
    samples: Floats  # [T, B] logarithm of tokens/s in each redraw of the rows
    num_rows: int

    def half_width(self, one: int, other: int) -> float | None:
        """Of the logarithm of the ratio of two trees' tokens/s; None where rows are too few."""
        return half_width(self.samples[one] - self.samples[other], self.num_rows)

    def is_surely_faster(self, one: int, other: int) -> bool:
        """Whether the lower end of the paired difference, one less other, is above 0."""
        half = self.half_width(one, other)
        if half is None:
            return False
        rates = [self.predictions[place].tokens_per_second for place in (one, other)]
        return float(np.log(rates[0]) - np.log(rates[1])) - half > 0

    def repriced(self, times: StepTimes) -> Evaluation:
        """The same trees over the same rows, where steps take other times."""
        seconds = [times.step(one.tree.num_nodes, one.tree.depth) for one in self.predictions]
        predictions = [
            Prediction(
                one.tree,
                one.mean_acceptance_length,
                new,
                one.tokens_per_second * one.step_seconds / new,
                None if one.low is None else one.low * one.step_seconds / new,
                None if one.high is None else one.high * one.step_seconds / new,
            )
            for one, new in zip(self.predictions, seconds, strict=True)
        ]
        factors = [one.step_seconds for one in self.predictions] / np.array(seconds)
        return replace(
            self,
            predictions=tuple(predictions),
            samples=self.samples + np.log(factors)[:, None],
        )

    @property
    def best(self) -> Prediction:
        """The fastest as predicted, however thin the evidence; ties to the first."""
        return max(self.predictions, key=lambda one: one.tokens_per_second)


def evaluate(
    trace: RankTrace, trees: Sequence[Tree], times: StepTimes, seed: int = 0
) -> Evaluation:
    """Predict each tree. Rows without a step say nothing; a trace of no other predicts plain."""
    tokens = row_tokens(trace)
    used = tokens > 0
    weights = redraws(int(used.sum()), seed)
    predictions, samples = [], []
    for tree in trees:
        starts = visited(trace, accepted_at(trace, tree))
        steps = np.bincount(rows_of(trace, starts), minlength=trace.num_rows)[used]
        seconds = times.step(tree.num_nodes, tree.depth)
        if not len(steps):
            predictions.append(Prediction(tree, 1.0, seconds, 1 / seconds, None, None))
            samples.append(np.zeros(len(weights)))
            continue
        lengths = (weights @ tokens[used]) / (weights @ steps)
        samples.append(np.log(lengths / seconds))
        mean = float(tokens[used].sum() / steps.sum())
        half = half_width(samples[-1], len(steps))
        bounds = [None if half is None else mean / seconds * np.exp(s * half) for s in (-1, 1)]
        low, high = (None if bound is None else float(bound) for bound in bounds)
        predictions.append(Prediction(tree, mean, seconds, mean / seconds, low, high))
    return Evaluation(tuple(predictions), np.array(samples), int(used.sum()))


def published_bank(evaluation: Evaluation) -> tuple[Prediction, ...]:
    """The paper's throughput-Pareto bank: by ascending size, what is faster than all before.

    Of equally large trees the faster comes first (METHOD §1.3 item 4).
    """
    kept: list[Prediction] = []
    for place in _by_size(evaluation):
        one = evaluation.predictions[place]
        if not kept or one.tokens_per_second > kept[-1].tokens_per_second + TOLERANCE:
            kept.append(one)
    return tuple(kept)


def sure_bank(evaluation: Evaluation) -> tuple[Prediction, ...]:
    """The same, but a larger tree must be faster beyond doubt than the last one kept.

    With few rows little is beyond doubt, and the bank ends with a small tree.
    """
    kept: list[int] = []
    for place in _by_size(evaluation):
        if not kept or evaluation.is_surely_faster(place, kept[-1]):
            kept.append(place)
    return tuple(evaluation.predictions[place] for place in kept)


class Judged(NamedTuple):
    """A choice made on one half of the rows, and what the other half says of it."""

    expected: Prediction
    found: Prediction


def judge(
    trace: RankTrace, times: StepTimes, choose: Callable[[RankTrace], Tree], seed: int = 0
) -> tuple[Judged, Judged]:
    """Choose a tree on each half of the rows and judge it on the other.

    Raises:
        BadInput: there are fewer than two rows with a step.
    """
    one, other = halves(trace, seed)
    return _judged(one, other, times, choose), _judged(other, one, times, choose)


def _judged(
    chosen_on: RankTrace,
    judged_on: RankTrace,
    times: StepTimes,
    choose: Callable[[RankTrace], Tree],
) -> Judged:
    tree = choose(chosen_on)
    expected, found = (evaluate(half, [tree], times) for half in (chosen_on, judged_on))
    return Judged(expected.best, found.best)


def _by_size(evaluation: Evaluation) -> list[int]:
    def order(place: int) -> tuple[int, float]:
        one = evaluation.predictions[place]
        return one.tree.num_nodes, -one.tokens_per_second

    return sorted(range(len(evaluation.predictions)), key=order)
