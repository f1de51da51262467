"""Which trees a chooser gets to choose from.

Knows: traces, times, and how trees are found. Does not know: how one of them is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from entmtp.calibrate.bands import best_in_bands
from entmtp.calibrate.best import frontier
from entmtp.calibrate.greedy import grow_all, replay_rollout
from entmtp.calibrate.recalibrate import published_frontier
from entmtp.calibrate.scores import scores
from entmtp.calibrate.throughput import evaluate, published_bank, sure_bank
from entmtp.calibrate.trace import RankTrace
from entmtp.scheduler.times import StepTimes
from entmtp.trees import ROOT, Tree

T = TypeVar("T")
NUM_BANDS = 6
MAX_TREES = 12


def as_published(trace: RankTrace, times: StepTimes) -> tuple[Tree, ...]:
    """The paper's bank: greedy growth, own rollouts, and what is strictly faster by size."""
    grown = published_frontier(grow_all(replay_rollout(trace), trace.ranks.shape[1]))
    evaluation = evaluate(trace, [one.tree for one in grown], times)
    return tuple(one.tree for one in published_bank(evaluation))


def for_choosing(trace: RankTrace, times: StepTimes, seed: int = 0) -> tuple[Tree, ...]:
    """The root alone, the best static tree, and the best trees within bands of how sure heads are.

    By ascending size. The bands are of the greedy path's value as deep as drafts usually pay: the
    depth of the best static tree. Smaller trees on the way to the static one fill up the bank.
    """
    static = [one.tree for one in sure_bank(evaluate(trace, frontier(trace), times, seed))]
    known = scores(trace)
    depth = max(1, min(static[-1].depth, trace.wide_tree.num_best))
    banded = best_in_bands(trace, times, known[f"g{depth}"], NUM_BANDS)
    trees = {ROOT, static[-1], *banded.trees}
    for tree in halving(static):
        if len(trees) < MAX_TREES:
            trees.add(tree)
    return tuple(sorted(trees, key=lambda tree: (tree.num_nodes, tree.paths)))


def halving(trees: Sequence[T]) -> list[T]:
    """The middle one, then the middles of both halves, and so on."""
    order: list[T] = []
    spans = [(0, len(trees))]
    while spans:
        low, high = spans.pop(0)
        if low < high:
            middle = (low + high) // 2
            order.append(trees[middle])
            spans += [(low, middle), (middle + 1, high)]
    return order
