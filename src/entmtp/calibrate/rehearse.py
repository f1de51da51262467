"""Policies as they run, replayed over rows that they were not fitted on.

Knows: banks, policies, traces, times. Does not know: models, files.

The rows are halved; a whole bank is made on one half and each of its policies replayed on the
other, and the other way round. Steps are priced with the calibrated times of what was drafted and
verified, a step with another number of rows than the one before it with a switch, and one of a
policy that looks at its root or its draft with that look. The policy's own arithmetic is not in
those; `seconds_to_choose` is measured here and counted.

Dimension key: R rows · S steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.compare import Replayed, replayed
from entmtp.calibrate.intervals import redraws
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.replay import PolicyRun, replay_policy
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import half_rows, halves, row_tokens, rows_of
from entmtp.scheduler import TreeBank, TreePolicy, policy_from_bank
from entmtp.scheduler.bank import RECOMMENDABLE
from entmtp.scheduler.times import StepTimes

BASELINE = "static"
MakeBank = Callable[[RankTrace], TreeBank]


COSTED = ("throughput", "per-step")
"""Policies that know the price of time."""


class Fold(NamedTuple):
    """A half of the rows, and a bank that has not seen them."""

    rows: tuple[int, ...]
    """Of the whole trace"""
    trace: RankTrace
    """Of these rows"""
    bank: TreeBank
    """Made on the other rows"""


class _Timed(NamedTuple):
    run: PolicyRun
    seconds_to_choose: float
    """Of one step, the replay's own work included"""


@dataclass(frozen=True)
class Rehearsed:
    """One policy on all rows, each judged by a bank of the other half."""

    replayed: Replayed
    mean_acceptance_length: float
    seconds_to_choose: float
    """Of a step, over what the best static tree takes"""
    num_steps_by_rows: Mapping[int, int]
    """Rows verified in a step, and in how many steps"""

    @property
    def is_surely_slower(self) -> bool:
        """Than the best static tree, or the same: nothing of its interval above 0."""
        return self.replayed.high is not None and self.replayed.high <= 0


def make_folds(trace: RankTrace, make_bank: MakeBank, seed: int = 0) -> tuple[Fold, Fold]:
    """Both halves, each with a bank of the other.

    Raises:
        BadInput: there are fewer than two rows with a step.
    """
    one, other = halves(trace, seed)
    rows = half_rows(trace, seed)
    return (
        Fold(tuple(rows[1]), other, make_bank(one)),
        Fold(tuple(rows[0]), one, make_bank(other)),
    )


def rehearse(
    folds: Sequence[Fold],
    times: StepTimes,
    seed: int = 0,
    names: Sequence[str] = RECOMMENDABLE,
) -> tuple[Rehearsed, ...]:
    """Every policy, crosswise; the best static tree first."""
    judged = [fold.trace for fold in folds]
    runs = {
        name: [_timed(fold.trace, policy_from_bank(name, fold.bank)) for fold in folds]
        for name in names
    }
    idle = _mean([each.seconds_to_choose for each in runs[BASELINE]])
    tokens = sum(int(row_tokens(trace).sum()) for trace in judged)
    base = _seconds(judged, runs[BASELINE], times, 0.0)
    weights = redraws(int((base > 0).sum()), seed)
    found = []
    for name in names:
        extra = max(0.0, _mean([each.seconds_to_choose for each in runs[name]]) - idle)
        seconds = _seconds(judged, runs[name], times, extra)
        figures = replayed((name, ""), seconds, base, tokens, weights)
        found.append(_rehearsed(figures, runs[name], tokens, extra))
    return tuple(found)


def tuned(bank: TreeBank, trace: RankTrace, times: StepTimes) -> TreeBank:
    """The bank, starting from the rates that its policies reach on the rows it was fitted on.

    Whether drafts are stopped between levels is settled by what is faster there.
    """
    best, fewest = bank, np.inf
    tokens = int(row_tokens(trace).sum())
    for stops in (True, False):
        tried = replace(bank, timing=replace(bank.timing, stops=stops))
        runs = {name: replay_policy(trace, policy_from_bank(name, tried)) for name in COSTED}
        seconds = {name: run_seconds(trace, run, times).sum() for name, run in runs.items()}
        if sum(seconds.values()) < fewest:
            fewest = sum(seconds.values())
            rates = {name: float(tokens / each) for name, each in seconds.items()}
            best = replace(tried, timing=replace(tried.timing, rates=rates))
    return best


class StepParts(NamedTuple):
    """What each step of a run is charged for, in seconds."""

    draft: Floats  # [S]
    verify: Floats  # [S]
    host: Floats  # [S]
    look: Floats  # [S] at its root and its draft
    switch: Floats  # [S] where it verified another number of rows than the one before in its row


def step_parts(trace: RankTrace, run: PolicyRun, times: StepTimes) -> StepParts:
    """The calibrated times of what the steps of a run did."""
    sizes = np.array([tree.num_nodes for tree in run.trees], dtype=np.int64)
    pairs = list(zip(run.drafted_nodes.tolist(), run.drafted.tolist(), strict=True))
    draft = {pair: times.draft(*pair) for pair in set(pairs)}
    verify = {rows: times.verify(rows) for rows in set(sizes.tolist())}
    look: Floats = times.root_seconds * run.reads_root + times.read_seconds * run.reads_draft
    switch: Floats = np.where(switches(trace, run), times.switch_seconds, 0.0)
    return StepParts(
        np.array([draft[pair] for pair in pairs]),
        np.array([verify[size] for size in sizes.tolist()]),
        np.full(len(sizes), times.host_seconds),
        look,
        switch,
    )


def switches(trace: RankTrace, run: PolicyRun) -> NDArray[np.bool_]:
    """Which steps `[S]` verified another number of rows than the one before in their row."""
    sizes = np.array([tree.num_nodes for tree in run.trees])
    rows = rows_of(trace, run.run.starts)
    found = np.zeros(len(sizes), dtype=np.bool_)
    found[1:] = (np.diff(sizes) != 0) & (np.diff(rows) == 0)
    return found


def run_seconds(trace: RankTrace, run: PolicyRun, times: StepTimes) -> Floats:
    """Seconds of each row `[R]`: what its steps drafted, verified and looked at, and switches."""
    spent: Floats = np.sum(step_parts(trace, run, times), axis=0)
    rows = rows_of(trace, run.run.starts)
    return np.bincount(rows, spent, trace.num_rows).astype(np.float64)


def _timed(trace: RankTrace, policy: TreePolicy) -> _Timed:
    started = perf_counter()
    run = replay_policy(trace, policy)
    spent = perf_counter() - started
    return _Timed(run, spent / max(len(run.trees), 1))


def _seconds(
    traces: Sequence[RankTrace], runs: Sequence[_Timed], times: StepTimes, extra: float
) -> Floats:
    """Of the rows of all traces, end to end, `extra` added to each step."""
    parts = []
    for trace, each in zip(traces, runs, strict=True):
        steps = np.bincount(rows_of(trace, each.run.run.starts), minlength=trace.num_rows)
        parts.append(run_seconds(trace, each.run, times) + extra * steps)
    return np.concatenate(parts)


def _rehearsed(figures: Replayed, runs: Sequence[_Timed], tokens: int, extra: float) -> Rehearsed:
    trees = [tree for each in runs for tree in each.run.trees]
    sizes, counts = np.unique([tree.num_nodes for tree in trees], return_counts=True)
    by_rows = dict(zip(sizes.tolist(), counts.tolist(), strict=True))
    return Rehearsed(figures, tokens / max(len(trees), 1), extra, by_rows)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
