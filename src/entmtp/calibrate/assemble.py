"""From a trace and step times to a bank: fitted parameters put where policies look for them.

Knows: traces, times, fits, banks. Does not know: models, files, other prompts than the trace's.

What stands in front of `timing` in a bank is computed without any times.

Dimension key: N starts · O candidate trees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.chooser import Hysteresis, Ladder
from entmtp.calibrate.fit import (
    accept_levels,
    fit_hysteresis,
    fit_ladder,
    hysteresis_seconds,
    ladder_choice,
    settle,
)
from entmtp.calibrate.monotone import bins_of
from entmtp.calibrate.offer import Offer, choose_offer
from entmtp.calibrate.options import Options, bank_options
from entmtp.calibrate.oracle import BankBounds, OracleBounds, bank_bounds, oracle_bounds
from entmtp.calibrate.perstep import fit_node_values
from entmtp.calibrate.pool import candidate_trees
from entmtp.calibrate.scores import Score, scores
from entmtp.calibrate.sizes import fit_per_step
from entmtp.calibrate.throughput import Evaluation, Prediction, evaluate, sure_bank
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, accepted_at, row_ends
from entmtp.scheduler import MadeFor, Stage, StepFunction, Times, TreeBank
from entmtp.scheduler.bank import (
    Acceptance,
    BankTree,
    HysteresisParameters,
    Interval,
    LadderParameters,
    MadeFrom,
    Timing,
)
from entmtp.scheduler.times import AtContext, OfBatch, StepTimes
from entmtp.trees import Tree

_ONE = StepTimes((1, 2), (1.0, 1.0), (0.0,) * 65, 0.0)
"""Every step takes a second: what does not depend on times is computed with these."""
_NO_LOOK = "accepted"
"""A score that is known without a look at anything"""


class Clock(NamedTuple):
    """Step times of one machine."""

    typical: StepTimes
    """At the average length of the calibration text: what is fitted is fitted at these"""
    by_length: Times
    batches: tuple[OfBatch, ...] = ()
    """Of several sequences that step together, at that same length"""

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those that were timed, from one sequence on."""
        return (1, *(batch.batch_size for batch in self.batches))

    def of_company(self, num_sequences: int) -> StepTimes:
        """`typical` for so many sequences."""
        return AtContext(0, self.typical, self.batches).of_company(num_sequences)


@dataclass(frozen=True)
class Candidates:
    """Trees of a bank, and what they do on one trace."""

    trace: RankTrace
    times: StepTimes
    trees: tuple[Tree, ...]
    evaluation: Evaluation
    offer: Offer

    @classmethod
    def of(cls, trace: RankTrace, times: StepTimes, seed: int) -> Candidates:
        trees = candidate_trees(trace)
        evaluation = evaluate(trace, trees, times, seed)
        return cls(trace, times, trees, evaluation, choose_offer(trace, times, trees, evaluation))

    def pick(self, places: Sequence[int]) -> tuple[Tree, ...]:
        return tuple(self.trees[place] for place in places)

    def best_in_company(self, clock: Clock) -> tuple[int, ...]:
        """Places of the best static trees of 2, 3, … sequences up to the largest batch timed."""
        companies = map(clock.of_company, range(2, clock.batch_sizes[-1] + 1))
        banks = (sure_bank(self.evaluation.repriced(times)) for times in companies)
        return tuple(self.trees.index(bank[-1].tree) for bank in banks)

    def oracle(self) -> OracleBounds:
        """What any scheduler could still win over the last of the chosen trees."""
        static, offered = self.trees[self.offer.chosen[-1]], self.pick(self.offer.offered)
        values = fit_node_values(self.trace)
        return oracle_bounds(self.trace, self.times, self.trees, static, offered, values)

    def bounds_over(self, static: Tree) -> dict[str, float]:
        """Those of the bank's trees, by name, where another one is the static tree."""
        offered = self.pick(self.offer.offered)
        return _of_bank(bank_bounds(self.trace, self.times, static, offered))


def assemble(
    candidates: Candidates, clock: Clock, made_for: MadeFor, made_from: MadeFrom
) -> TreeBank:
    """A bank with every policy's parameters fitted on the whole trace; `static` is recommended."""
    trace = candidates.trace
    lengths = evaluate(trace, candidates.trees, _ONE, made_from.seed).predictions
    acceptance = _acceptance(trace, candidates.trees)
    return TreeBank(
        made_for=made_for,
        made_from=made_from,
        trees=tuple(
            BankTree(tree, _interval(one))
            for tree, one in zip(candidates.trees, lengths, strict=True)
        ),
        wide_tree=trace.wide_tree,
        acceptance=acceptance,
        timing=_timing(candidates, clock, acceptance.stages),
    )


def _interval(one: Prediction) -> Interval:
    """Where there are too few rows to say how sure it is, all that it could be."""
    least, most = 1 / one.step_seconds, (1 + one.tree.depth) / one.step_seconds
    low = least if one.low is None else one.low
    high = most if one.high is None else one.high
    return Interval(one.tokens_per_second, max(low, least), min(high, most))


def _acceptance(trace: RankTrace, trees: Sequence[Tree]) -> Acceptance:
    accepted = np.stack([accepted_at(trace, tree) for tree in trees], axis=1)
    values = fit_node_values(trace)
    depths = range(trace.wide_tree.depth)
    begins = np.arange(len(accepted)) < row_ends(trace)
    return Acceptance(
        tuple(stage_of(accepted[begins], one, begins) for one in stage_scores(trace)),
        blind_stage(accepted[begins], begins),
        tuple(_stepped(values.edges[depth], values.levels[depth]) for depth in depths),
        values.reach,
    )


def stage_scores(trace: RankTrace) -> list[Score]:
    """p0 before drafting, then the greedy path's value as deep as it is known; at least two."""
    known = scores(trace)
    depths = range(1, trace.wide_tree.num_best + 1)
    return [known["p0"], *(known[f"g{depth}"] for depth in depths)]


def stage_of(accepted: Places, score: Score, at: NDArray[np.bool_]) -> Stage:
    """A table for each tree.

    Args:
        accepted: drafts `[S, O]` that each tree accepts at the starts that are fitted on.
        at: which of the score's `[N]` starts these are.
    """
    edges, levels = accept_levels(accepted, score.values[at])
    return Stage(score.name, tuple(_stepped(edges, row) for row in levels))


def blind_stage(accepted: Places, at: NDArray[np.bool_]) -> Stage:
    """By a score that costs no look and is not heeded: each table has one level."""
    return stage_of(accepted, Score("accepted", np.zeros(len(at)), 0), at)


def _stepped(edges: Sequence[float], levels: Sequence[float]) -> StepFunction:
    """With edges as a file holds them; of those that then are one, the last counts."""
    kept: dict[float, float] = {}
    for edge, level in zip(edges, levels[1:], strict=True):
        kept[_as_written(edge)] = level
    return StepFunction(tuple(kept), (levels[0], *kept.values()))


def _as_written(number: float) -> float:
    return float(f"{number:.6g}")


def _timing(candidates: Candidates, clock: Clock, stages: Sequence[Stage]) -> Timing:
    trace, times, offer = candidates.trace, candidates.times, candidates.offer
    per_step = fit_per_step(trace, times)
    plain = 1 / times.step(1, 0)
    return Timing(
        step_times=tuple(clock.by_length),
        tokens_per_second=tuple(map(_interval, candidates.evaluation.predictions)),
        chosen=offer.chosen,
        offered=offer.offered,
        ladder=_ladder(candidates),
        hysteresis=_hysteresis(candidates),
        rates={
            "throughput": max(plain, _rate(candidates, stages)),
            "per-step": max(plain, per_step.tokens_per_second),
        },
        sizes=per_step.sizes,
        stops=True,
        recommended="static",
        live=(),
        oracle_bounds=_bounds(candidates.oracle()),
        looks_at_root=True,
        best_in_company=candidates.best_in_company(clock),
    )


def _bounds(bounds: OracleBounds) -> dict[str, float]:
    return {
        "plain": bounds.plain,
        "fastest_static": bounds.fastest_static.tokens_per_second,
        **_of_bank(bounds.bank),
        "fixed_size": bounds.fixed_size.tokens_per_second,
        "perfect_size": bounds.perfect_size,
        "full": bounds.full,
    }


def _of_bank(bounds: BankBounds) -> dict[str, float]:
    return {
        "best_static": bounds.best_static.tokens_per_second,
        "bank_this_step": bounds.this_step,
        "bank_perfect": bounds.perfect,
    }


def _rate(candidates: Candidates, stages: Sequence[Stage]) -> float:
    """Tokens a second of the offered trees, chosen by the last stage's score."""
    score = stage_scores(candidates.trace)[len(stages) - 1]
    offered = candidates.offer.offered
    options = _options(candidates, offered, score)
    tables = [stages[-1].by_tree[place] for place in offered]
    bins = [bins_of(score.values, table.edges) for table in tables]
    levels = [np.array(table.levels)[at] for table, at in zip(tables, bins, strict=True)]
    return settle(options, np.stack(levels, axis=1)).tokens_per_second


def _options(candidates: Candidates, places: Sequence[int], score: Score) -> Options:
    trees = candidates.pick(places)
    return bank_options(
        candidates.trace, trees, candidates.times, score.levels, reads_root=score.reads_root
    )


def _policy_scores(trace: RankTrace) -> list[Score]:
    """What `ladder` and `hysteresis` may look at; the best on the calibration rows is taken."""
    known = scores(trace)
    names = ("p0", "entropy", *(f"g{depth}" for depth in range(1, 5)), "sum_g")
    return [known[name] for name in names if name in known]


def _ladder(candidates: Candidates) -> LadderParameters:
    """Over the chosen trees, less those whose band is empty.

    Where no score pays for the look at it, the best static tree alone.
    """
    chosen = candidates.offer.chosen
    best = LadderParameters(_NO_LOOK, chosen[-1:], ())
    fewest = _static_seconds(candidates)
    for score in _policy_scores(candidates.trace) if len(chosen) > 1 else ():
        options = _options(candidates, chosen, score)
        ladder = fit_ladder(options, score)
        choice = ladder_choice(ladder, score.values)
        seconds = options.row_seconds(choice).sum()
        if seconds < fewest and len(set(choice.tolist())) > 1:
            best, fewest = _without_empty_bands(ladder, chosen), seconds
    return best


def _static_seconds(candidates: Candidates) -> float:
    """Of the best static tree over all rows: it looks at nothing."""
    options = bank_options(
        candidates.trace, candidates.pick(candidates.offer.chosen[-1:]), candidates.times
    )
    return float(options.row_seconds(np.zeros(len(options.accepted), dtype=np.int64)).sum())


def _without_empty_bands(ladder: Ladder, places: Sequence[int]) -> LadderParameters:
    """A band that begins where the next one does is none, to the digits that a file holds."""
    trees, thresholds = [places[0]], list[float]()
    for place, threshold in zip(places[1:], map(_as_written, ladder.thresholds), strict=True):
        if thresholds and threshold <= thresholds[-1]:
            trees[-1] = place
        else:
            trees.append(place)
            thresholds.append(threshold)
    return LadderParameters(ladder.score, tuple(trees), tuple(thresholds))


def _hysteresis(candidates: Candidates) -> HysteresisParameters:
    """Of two offered trees; the best static tree twice where no score pays for the look at it."""
    offered = candidates.offer.offered
    static = offered.index(candidates.offer.chosen[-1])
    best = Hysteresis(_NO_LOOK, static, static, 0.0, 0.0)
    fewest = _static_seconds(candidates)
    for score in _policy_scores(candidates.trace):
        options = _options(candidates, offered, score)
        rule = fit_hysteresis(options, score)
        seconds = hysteresis_seconds(options, score.values, rule).sum()
        if seconds < fewest:
            best, fewest = rule, seconds
    on, off = _as_written(best.tau_on), _as_written(best.tau_off)
    small, big = offered[best.small], offered[best.big]
    return HysteresisParameters(best.score, small, big, on, off)
