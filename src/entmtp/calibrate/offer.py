"""Which of the candidate trees are worth having on this machine.

Knows: traces, times, candidates. Does not know: how one of them is chosen in a step.

A throughput-Pareto bank ends with the best static tree. What is offered to a policy that knows the
price of time goes on behind it: in each band of how sure the heads are, the candidate that is worth
most there. Nothing gets in on thin evidence: it must be ahead of the best static tree by `DOUBT`
standard errors of their difference. Switching between trees is free here: whether one pays is asked
of the policy that chooses, which knows the step before.

Dimension key: N starts · O candidates · B bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.banks import halving
from entmtp.calibrate.intervals import MIN_ROWS
from entmtp.calibrate.monotone import bins_of, quantile_edges
from entmtp.calibrate.options import Options, bank_options
from entmtp.calibrate.scores import scores
from entmtp.calibrate.throughput import Evaluation, sure_bank
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, row_ends
from entmtp.scheduler.times import StepTimes
from entmtp.trees import Tree

DOUBT = 2.0
NUM_BANDS = 6
NUM_ROUNDS = 4
"""Of choosing and walking"""
MAX_SIZES = 8
"""A runtime keeps a compiled copy of so many numbers of rows; steps of others take longer"""


class Offer(NamedTuple):
    """Places of candidates, ascending."""

    chosen: tuple[int, ...]
    """The throughput-Pareto bank, each surely faster than the one before"""
    offered: tuple[int, ...]
    """The last of those, the root alone, and what bands of text want"""


def choose_offer(
    trace: RankTrace, times: StepTimes, trees: Sequence[Tree], evaluation: Evaluation
) -> Offer:
    """
    Args:
        trees: candidates by size; the first is the root alone, and one at least drafts.
        evaluation: of the candidates, in their order.
    """
    pareto = sorted(trees.index(one.tree) for one in sure_bank(evaluation))
    static = pareto[-1]
    chosen, offered = {static}, {0, static, *_in_bands(trace, times, trees, static)}
    for place in halving(pareto):
        for kept in (chosen, offered):
            if len({trees[each].num_nodes for each in (*kept, place)}) <= MAX_SIZES:
                kept.add(place)
    if offered == {0}:
        offered.add(1)  # who never drafts learns nothing
    return Offer(tuple(sorted(chosen)), tuple(sorted(offered)))


def _in_bands(
    trace: RankTrace, times: StepTimes, trees: Sequence[Tree], static: int
) -> tuple[int, ...]:
    depth = max(1, min(trees[static].depth, trace.wide_tree.num_best))
    known = scores(trace).get(f"g{depth}")
    if known is None or trace.num_rows < MIN_ROWS:
        return ()
    options = bank_options(trace, trees, replace(times, switch_seconds=0.0))
    begin = np.arange(len(trace.ranks)) < row_ends(trace)
    bands = bins_of(known.values, quantile_edges(known.values[begin], NUM_BANDS))
    choice = np.full(len(bands), static)
    rate = options.tokens_per_second(choice)
    picked: tuple[int, ...] = ()
    for _ in range(NUM_ROUNDS):
        at = options.visited(choice)
        latest = [_best(options, at & (bands == band), rate, static) for band in range(NUM_BANDS)]
        choice = np.array(latest)[bands]
        reached = options.tokens_per_second(choice)
        if reached <= rate:
            break
        rate, picked = reached, tuple(latest)
    return picked


def _best(options: Options, at: Places, rate: float, static: int) -> int:
    """The candidate most surely worth more than `static` at the starts `at`, or that one."""
    if not at.any():
        return static
    ahead = options.accepted[at] - options.accepted[at][:, [static]]
    price = rate * (options.seconds[0] - options.seconds[0, static])
    doubt = DOUBT * ahead.std(axis=0) / np.sqrt(len(ahead))
    return int((ahead.mean(axis=0) - doubt - price).argmax())
