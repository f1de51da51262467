"""What any scheduler could still win here: bounds in tokens a second.

Knows: traces, times, banks, node values. Does not know: policies.

Each bound is the rate of a chooser that knows more than a policy may:

    best_static       no choice at all: the bank's static tree, always
    fastest_static    the same of the candidate that is fastest on this trace: a bank takes a larger
                      tree only where that is surely faster, so its own may be a smaller one
    bank_this_step    of a bank: what each tree accepts now, but not what later steps bring
    bank_perfect      of a bank: everything that will come
    fixed_size        the same number of nodes each step, ranked anew each step
    perfect_size      the same ranking, cut each step right behind the last true node, at its level
    full              only the true path is verified, as deep as a head has the true token at all

The choosers of a bank have its static tree among their trees, so they are never slower than it.
The last two know how deep to draft too. What they may choose knows everything that will come.
Switching between sizes costs a bound nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.chooser import NodeValues
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.options import Options, bank_options, fastest, greedy
from entmtp.calibrate.perstep import accepted_with, true_places, worths
from entmtp.calibrate.throughput import Prediction, evaluate
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.calibrate.walk import Places, futures, row_tokens, visited
from entmtp.scheduler.times import StepTimes
from entmtp.trees import ROOT, Tree


@dataclass(frozen=True)
class FixedSize:
    """The best of all fixed sizes of a tree made for each step."""

    num_nodes: int
    """The root included"""
    depth: int
    """Levels drafted"""
    tokens_per_second: float


class BankBounds(NamedTuple):
    """Of a bank's trees, in tokens a second; each knows more than the one before."""

    best_static: Prediction
    this_step: float
    perfect: float


@dataclass(frozen=True)
class OracleBounds:
    """Tokens a second while decoding."""

    plain: float
    fastest_static: Prediction
    bank: BankBounds
    fixed_size: FixedSize
    perfect_size: float
    full: float

    def gain(self, tokens_per_second: float) -> float:
        """Over the bank's static tree; 0.05 for 5 % more."""
        return tokens_per_second / self.bank.best_static.tokens_per_second - 1


def oracle_bounds(
    trace: RankTrace,
    times: StepTimes,
    candidates: Sequence[Tree],
    static: Tree,
    bank: Sequence[Tree],
    values: NodeValues | None = None,
) -> OracleBounds:
    """All bounds over one trace.

    Args:
        candidates: of which the bank's trees are some.
        static: the bank's own static tree.
        bank: what the bank's choosers choose from, beside that.
        values: of the nodes of the wide tree; the heads' own word without.
    """
    worth = worths(trace, values)
    return OracleBounds(
        plain=1 / times.step(ROOT.num_nodes, 0),
        fastest_static=evaluate(trace, [*candidates, static], times).best,
        bank=bank_bounds(trace, times, static, bank),
        fixed_size=best_fixed_size(trace, times, worth),
        perfect_size=_rate(_perfect_size_options(trace, times, worth)),
        full=_rate(_full_options(trace, times)),
    )


def bank_bounds(
    trace: RankTrace, times: StepTimes, static: Tree, bank: Sequence[Tree]
) -> BankBounds:
    """What the trees of a bank bring, `static` always or any of them."""
    best = evaluate(trace, [static], times).best
    trees = list(dict.fromkeys((static, *bank)))
    options = bank_options(trace, trees, replace(times, switch_seconds=0.0))
    # Who knows this step alone may be misled by it, and then does better to keep to one tree.
    this_step = max(best.tokens_per_second, options.tokens_per_second(greedy(options)))
    perfect = max(this_step, options.tokens_per_second(fastest(options)))
    return BankBounds(best, this_step, perfect)


def best_fixed_size(trace: RankTrace, times: StepTimes, worth: Floats) -> FixedSize:
    """Try every number of nodes at every depth; ties to fewer nodes."""
    tokens = int(row_tokens(trace).sum())
    best = FixedSize(1, 0, 1 / times.step(1, 0))
    for depth in range(1, trace.wide_tree.depth + 1):
        places = true_places(trace, worth, depth)
        for num_drafts in range(1, trace.wide_tree.truncate(depth).num_nodes):
            steps = len(visited(trace, accepted_with(places, num_drafts)))
            seconds = steps * times.step(num_drafts + 1, depth)
            if steps and tokens / seconds > best.tokens_per_second:
                best = FixedSize(num_drafts + 1, depth, tokens / seconds)
    return best


def _perfect_size_options(trace: RankTrace, times: StepTimes, worth: Floats) -> Options:
    """Accept 0, 1, … drafts: that many levels, and all nodes ranked up to the last true one."""
    depth, num = trace.wide_tree.depth, trace.wide_tree.num_nodes
    seconds = np.full((len(worth), depth + 1), np.inf)
    seconds[:, 0] = times.step(1, 0)
    for levels in range(1, depth + 1):
        last = true_places(trace, worth, levels)[:, -1]
        costs = [times.step(drafts + 1, levels) for drafts in range(1, num)]
        seconds[:, levels] = np.array([*costs, np.inf, np.inf])[np.minimum(last, num)]
    return Options.of(trace, _depths(seconds), seconds)


def _full_options(trace: RankTrace, times: StepTimes) -> Options:
    """Accept 0, 1, … drafts: that many levels, and their true path alone."""
    ranks = futures(trace)
    deep = np.cumprod(ranks < MISS, axis=1).sum(axis=1)
    costs = np.array([times.step(drafts + 1, drafts) for drafts in range(ranks.shape[1] + 1)])
    is_there = np.arange(len(costs)) <= deep[:, None]
    seconds = np.where(is_there, costs, np.inf)
    return Options.of(trace, _depths(seconds), seconds)


def _depths(seconds: Floats) -> Places:
    return np.tile(np.arange(seconds.shape[1]), (len(seconds), 1))


def _rate(options: Options) -> float:
    return options.tokens_per_second(fastest(options))
