"""The numbers behind a bank, for people: what was measured, what was found, how sure it is.

Knows: a finished calibration. Does not know: pages, pictures (`report.py` draws these numbers).

Everything is plain JSON: objects, lists, numbers, null where a figure does not exist.

Dimension key: N starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from entmtp.calibrate.association import associate
from entmtp.calibrate.banks import for_choosing
from entmtp.calibrate.compare import Replayed, compare
from entmtp.calibrate.greedy import grow_all, replay_rollout
from entmtp.calibrate.live_numbers import live_numbers
from entmtp.calibrate.pipeline import Calibration
from entmtp.calibrate.recalibrate import published_frontier, recalibrate
from entmtp.calibrate.scores import acceptance_average, scores
from entmtp.calibrate.throughput import Prediction, evaluate, judge, sure_bank
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import accepted_at, num_rows_with_steps, row_ends, visited
from entmtp.trees import Tree

NUM_RANKS = 10
"""Of the table of acceptance by depth and rank"""
MIN_ROWS = 4
"""Below this, nothing is judged crosswise: a half would have no rows to speak of"""

Numbers = dict[str, Any]


def study(made: Calibration) -> Numbers:
    """All numbers of a report."""
    bank = made.bank
    return {
        "made_for": asdict(bank.made_for),
        "made_from": asdict(bank.made_from),
        "machine": dict(made.tables[0].machine),
        "seconds": dict(made.seconds),
        "recommended": bank.timing.recommended,
        "oracle_bounds": dict(bank.timing.oracle_bounds),
        "static_num_nodes": bank.best_static.num_nodes,
        "fastest_static_num_nodes": made.candidates.evaluation.best.tree.num_nodes,
        "trees": _trees(made),
        "ladder": asdict(bank.timing.ladder),
        "hysteresis": asdict(bank.timing.hysteresis),
        "sizes": list(bank.timing.sizes),
        "stops": bank.timing.stops,
        "rates": dict(bank.timing.rates),
        "step_times": [
            {"num_tokens": one.num_tokens, **asdict(one.times)} for one in bank.timing.step_times
        ],
        "batches": _batches(made),
        "timed_trees": _timed_trees(made),
        "timed_switches": [
            one._asdict() | {"seconds": one.seconds._asdict()} for one in made.tables[0].switches
        ],
        "acceptance_by_depth_and_rank": by_depth_and_rank(made.stored.trace),
        "signals": _signals(made),
        "policies": [
            one.replayed._asdict()
            | {
                "mean_acceptance_length": one.mean_acceptance_length,
                "seconds_to_choose": one.seconds_to_choose,
                "num_steps_by_rows": {str(k): v for k, v in one.num_steps_by_rows.items()},
            }
            for one in made.rehearsed
        ],
        "live": live_numbers(bank),
        "looks": made.tables[0].looks._asdict(),
        "choosers": [one._asdict() for one in _compared(made)],
        "best_static": _judged(made),
        "greedy_bias": _greedy_bias(made.stored.trace),
    }


def _trees(made: Calibration) -> list[Numbers]:
    """Every candidate with what it accepts and brings."""
    timing = made.bank.timing
    return [
        {
            "num_nodes": entry.tree.num_nodes,
            "depth": entry.tree.depth,
            "mean_acceptance_length": entry.mean_acceptance_length._asdict(),
            "tokens_per_second": rate._asdict(),
            "step_seconds": predicted.step_seconds,
            "is_chosen": place in timing.chosen,
            "is_offered": place in timing.offered,
            "paths": [list(path) for path in entry.tree.paths[1:]],
        }
        for place, (entry, rate, predicted) in enumerate(
            zip(
                made.bank.trees,
                timing.tokens_per_second,
                made.candidates.evaluation.predictions,
                strict=True,
            )
        )
    ]


def _batches(made: Calibration) -> list[Numbers]:
    """Of each batch size that was timed: the best tree, and the fastest of each size.

    Tokens a second are those of all sequences together, as predicted.
    """
    bank, evaluation = made.bank, made.candidates.evaluation
    lengths = [one.num_tokens for one in bank.timing.step_times]
    found = []
    for number in made.clock.batch_sizes:
        repriced = evaluation.repriced(made.clock.of_company(number))
        rates = {one.tree: number * one.tokens_per_second for one in repriced.predictions}
        fastest: dict[int, Tree] = {}
        for tree in sorted(rates, key=rates.__getitem__):
            fastest[tree.num_nodes] = tree
        best = bank.static_trees[number - 1]
        tables = [one.of_company(number) for one in bank.timing.step_times]
        found.append(
            {
                "batch_size": number,
                "best": _rated(best, rates),
                "fastest_by_size": [_rated(fastest[size], rates) for size in sorted(fastest)],
                "step_times": [
                    {"num_tokens": length, **asdict(times)}
                    for length, times in zip(lengths, tables, strict=True)
                ],
            }
        )
    return found


def _rated(tree: Tree, rates: Mapping[Tree, float]) -> Numbers:
    shape = {"num_nodes": tree.num_nodes, "depth": tree.depth}
    return shape | {"tokens_per_second": rates[tree]}


def _timed_trees(made: Calibration) -> list[Numbers]:
    """Steps as they were measured: quartiles of the parts."""
    return [
        {
            "num_nodes": entry.tree.num_nodes,
            "depth": entry.tree.depth,
            "context": entry.context,
            "num_samples": entry.num_samples,
            "num_accepted": entry.num_accepted,
            **{name: getattr(entry, name)._asdict() for name in ("draft", "verify", "host")},
        }
        for entry in made.tables[0].entries
    ]


def by_depth_and_rank(trace: RankTrace) -> list[list[float]]:
    """Of each depth, how often the true token had rank 0, 1, …, given the true ones before it."""
    behind = row_ends(trace) - np.arange(len(trace.ranks))
    table = []
    for depth in range(trace.ranks.shape[1]):
        ranks = trace.ranks[behind > depth, depth]
        counts = np.bincount(ranks[ranks < NUM_RANKS], minlength=NUM_RANKS)
        table.append((counts / max(len(ranks), 1)).tolist())
    return table


def _signals(made: Calibration) -> list[Numbers]:
    """How much each score says of what the largest offered tree accepts, on its own run."""
    trace = made.stored.trace
    tree = made.bank.offer[-1]
    accepted = accepted_at(trace, tree)
    starts = visited(trace, accepted)
    known = [*scores(trace).values(), acceptance_average(trace, accepted)]
    return [associate(score, accepted, starts)._asdict() for score in known]


def _compared(made: Calibration) -> tuple[Replayed, ...]:
    """Simple choosers with every score, judged crosswise, thresholds for stopping included."""
    trace = made.stored.trace
    if num_rows_with_steps(trace) < MIN_ROWS:
        return ()
    known = scores(trace)
    names = [name for name in ("p0", "entropy", "g1", "g2", "g3", "sum_g") if name in known]
    times, seed = made.clock.typical, made.bank.made_from.seed
    return compare(trace, times, lambda half: for_choosing(half, times, seed), names, seed)


def _judged(made: Calibration) -> list[Numbers]:
    """The best static tree of each half, and what the other half says of it."""
    trace, times = made.stored.trace, made.clock.typical
    if num_rows_with_steps(trace) < MIN_ROWS:
        return []

    def choose(half: RankTrace) -> Tree:
        return sure_bank(evaluate(half, made.candidates.trees, times))[-1].tree

    return [
        {"expected": _prediction(one.expected), "found": _prediction(one.found)}
        for one in judge(trace, times, choose, made.bank.made_from.seed)
    ]


def _prediction(one: Prediction) -> Mapping[str, Any]:
    return {
        "num_nodes": one.tree.num_nodes,
        "mean_acceptance_length": one.mean_acceptance_length,
        "tokens_per_second": one.tokens_per_second,
    }


def _greedy_bias(trace: RankTrace) -> list[Numbers]:
    """The paper's construction: the score that a tree was grown by, and its own."""
    grown = published_frontier(grow_all(replay_rollout(trace), trace.ranks.shape[1]))
    return [
        {
            "num_nodes": one.tree.num_nodes,
            "depth": one.tree.depth,
            "biased_mean_accepted": one.biased_mean_accepted,
            "true_mean_accepted": one.true_mean_accepted,
        }
        for one in recalibrate(trace, grown)
    ]
