"""Which of the candidate trees are worth having on this machine.

Knows: traces, times, candidates. Does not know: how one of them is chosen in a step.

A throughput-Pareto bank ends with the best static tree. What is offered to a policy that knows the
price of time goes on behind it: in each band of how sure the heads are, the candidate that is worth
most there. Nothing gets in on thin evidence: it must be ahead of the best static tree by the 95 %
interval of their difference. Each prompt counts as a whole, since its steps are alike. Switching
between trees is free here: whether one pays is asked of the policy that chooses, which knows the
step before.

Dimension key: N starts · O candidates · B bands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.banks import halving
from entmtp.calibrate.intervals import MIN_ROWS, student_quantile
from entmtp.calibrate.monotone import bins_of, quantile_edges
from entmtp.calibrate.options import Options, bank_options
from entmtp.calibrate.scores import scores
from entmtp.calibrate.throughput import Evaluation, sure_bank
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, row_ends, rows_of
from entmtp.scheduler.times import StepTimes
from entmtp.trees import Tree

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
        starts = [np.flatnonzero(at & (bands == band)) for band in range(NUM_BANDS)]
        latest = [_best(options, one, rate, static) for one in starts]
        choice = np.array(latest)[bands]
        reached = options.tokens_per_second(choice)
        if reached <= rate:
            break
        rate, picked = reached, tuple(latest)
    return picked


def _best(options: Options, starts: Places, rate: float, static: int) -> int:
    """The candidate most surely worth more than `static` at some starts, or that one."""
    rows, row_of = np.unique(rows_of(options.trace, starts), return_inverse=True)
    if len(rows) < MIN_ROWS:
        return static
    ahead = options.accepted[starts] - options.accepted[starts][:, [static]]
    price = rate * (options.seconds[0] - options.seconds[0, static])
    apart = np.zeros((len(rows), ahead.shape[1]))  # [R, O] each row's part in the error of the mean
    np.add.at(apart, row_of, (ahead - ahead.mean(axis=0)) / len(ahead))
    error = np.sqrt((apart**2).sum(axis=0) * len(rows) / (len(rows) - 1))
    doubt = student_quantile(len(rows) - 1) * error
    return int((ahead.mean(axis=0) - doubt - price).argmax())
