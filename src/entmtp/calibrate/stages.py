"""What would be verified behind each level of a draft: of a bank, or of a tree made for the step.

Knows: traces, times, fitted tables. Does not know: when to stop (`stopping.py`).

Dimension key: N starts · K levels · M nodes of the wide tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from entmtp.calibrate.chooser import ExpectedAccept, StagedAccept, StagedNodes
from entmtp.calibrate.fit import expected_accept, fit_expected
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.options import Options, bank_options
from entmtp.calibrate.perstep import fit_node_values, worths
from entmtp.calibrate.scores import Score, scores
from entmtp.calibrate.sizes import Sized, size_options
from entmtp.calibrate.stopping import MakeStages, Stages, fit_stops, levels_of
from entmtp.calibrate.trace import RankTrace
from entmtp.scheduler.times import StepTimes
from entmtp.trees import Tree


def fit_staged_accept(trace: RankTrace, times: StepTimes, bank: Sequence[Tree]) -> StagedAccept:
    """Tables for each level and when to stop; the bank needs the root alone among its trees."""
    known = _path_scores(trace)
    models = tuple(
        fit_expected(bank_options(trace, bank, times, depth, reads_root=True), score)
        for depth, score in enumerate(known)
    )
    rate = max(model.tokens_per_second for model in models)
    return StagedAccept(models, fit_stops(_bank_stages(trace, times, bank, models), rate))


def replay_staged_accept(
    fitted: StagedAccept, trace: RankTrace, times: StepTimes, bank: Sequence[Tree]
) -> Floats:
    """Seconds of each row `[R]`."""
    stages = _bank_stages(trace, times, bank, fitted.stages)(fitted.stops.tokens_per_second)
    return stages.options.row_seconds(levels_of(fitted.stops, stages.signals))


def fit_staged_nodes(trace: RankTrace, times: StepTimes) -> StagedNodes:
    """Node values and when to stop."""
    values = fit_node_values(trace)
    make = _node_stages(trace, times, worths(trace, values))
    return StagedNodes(values, fit_stops(make, 1 / times.step(1, 0)))


def replay_staged_nodes(fitted: StagedNodes, trace: RankTrace, times: StepTimes) -> Floats:
    """Seconds of each row `[R]`."""
    make = _node_stages(trace, times, worths(trace, fitted.values))
    stages = make(fitted.stops.tokens_per_second)
    return stages.options.row_seconds(levels_of(fitted.stops, stages.signals))


def _bank_stages(
    trace: RankTrace, times: StepTimes, bank: Sequence[Tree], models: Sequence[ExpectedAccept]
) -> MakeStages:
    known = _path_scores(trace)
    depths = np.array([tree.depth for tree in bank])
    sized = []
    for depth, (model, score) in enumerate(zip(models, known, strict=True)):
        # What has not been drafted cannot be verified.
        expected = np.where(depths <= depth, expected_accept(model, score.values), -np.inf)
        # p0 is read before drafting, whatever is then drafted.
        options = bank_options(trace, bank, times, depth, reads_root=True)
        sized.append(Sized(options, expected))
    signals = np.stack([score.values for score in known[:-1]], axis=1)
    return lambda rate: Stages(_most_worth(trace, sized, rate), signals)


def _node_stages(trace: RankTrace, times: StepTimes, worth: Floats) -> MakeStages:
    num_levels = trace.wide_tree.depth
    # p0 is read before drafting, whatever is then drafted.
    looking = replace(times, host_seconds=times.host_seconds + times.root_seconds)
    sized = [size_options(trace, looking, worth, depth=depth) for depth in range(num_levels + 1)]
    depths = np.array(trace.wide_tree.depths)
    root = trace.root_probability.astype(np.float64)
    masses = [worth[:, depths == depth].sum(axis=1) for depth in range(1, num_levels)]
    signals = np.stack([root, *masses], axis=1)
    return lambda rate: Stages(_most_worth(trace, sized, rate), signals)


def _most_worth(trace: RankTrace, sized: Sequence[Sized], rate: float) -> Options:
    """Of the options behind each level, the one worth most there: one option a level.

    The choice ignores switches, and a run of such choices is charged for them.
    """
    taken = []
    for options, expected in sized:
        choice = (expected - rate * options.seconds).argmax(axis=1)[:, None]
        columns = (options.accepted, options.seconds, options.sizes)
        taken.append([np.take_along_axis(column, choice, axis=1) for column in columns])
    accepted, seconds, sizes = (
        np.concatenate(column, axis=1) for column in zip(*taken, strict=True)
    )
    return Options.of(trace, accepted, seconds, sizes, sized[0].options.switch_seconds)


def _path_scores(trace: RankTrace) -> list[Score]:
    known = scores(trace)
    return [known["p0"], *(known[f"g{d}"] for d in range(1, trace.wide_tree.num_best + 1))]
