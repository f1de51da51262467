"""Trees that are best within a band of a score: not nested, and larger than the best static one.

Knows: traces, times, scores. Does not know: policies.

A throughput-Pareto bank ends with the best static tree, so it has nothing for where the text is
easier than on average. Here each band of the score gets the tree that is worth most at the starts
that fall into it: of each depth the most frequent paths there, as many as are worth their time.

Dimension key: N starts · S visited starts · K draft heads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from entmtp.calibrate.best import MAX_NODES, PathTable
from entmtp.calibrate.monotone import bins_of, quantile_edges
from entmtp.calibrate.options import Options, bank_options
from entmtp.calibrate.scores import Score
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, row_ends
from entmtp.scheduler.times import StepTimes
from entmtp.trees import ROOT, Tree

DOUBT = 1.0
"""Standard errors taken off how often a path was seen: of the many rare ones, those that came up
by chance look best, and a band has few starts"""
NUM_ROUNDS = 4
"""Of choosing trees and walking with them"""


class Banded(NamedTuple):
    """A tree for each band of a score, where they were found no slower than any round before."""

    thresholds: tuple[float, ...]
    """Strictly rising; a score at a threshold is in the band above"""
    trees: tuple[Tree, ...]
    """Of each band; the same tree may serve several, and sizes need not rise"""
    tokens_per_second: float

    def choose(self, score: Score) -> Places:
        """The band `[N]` of each start."""
        return bins_of(score.values, self.thresholds)


def best_in_bands(
    trace: RankTrace,
    times: StepTimes,
    score: Score,
    num_bands: int,
    max_nodes: int = MAX_NODES,
) -> Banded:
    """Bands of about equally many starts, and their trees; visited starts and rate iterated."""
    finder = _Finder(PathTable.of(trace), times, score.levels, max_nodes)
    begin = np.flatnonzero(np.arange(len(score.values)) < row_ends(trace))
    thresholds = quantile_edges(score.values[begin], num_bands)
    bands = bins_of(score.values, thresholds)
    best = Banded(thresholds, (ROOT,) * (len(thresholds) + 1), 1 / times.step(1, score.levels))
    starts, rate = begin, best.tokens_per_second
    for _ in range(NUM_ROUNDS):
        trees = tuple(
            finder.best(starts[bands[starts] == band], rate) for band in range(len(thresholds) + 1)
        )
        options: Options = bank_options(
            trace, trees, times, score.levels, reads_root=score.reads_root
        )
        rate = options.tokens_per_second(bands)
        starts = np.flatnonzero(options.visited(bands))
        if rate > best.tokens_per_second:
            best = Banded(thresholds, trees, rate)
    return best


class _Finder(NamedTuple):
    table: PathTable
    times: StepTimes
    levels: int
    max_nodes: int

    def best(self, starts: Places, rate: float) -> Tree:
        """The tree of most `accepted - λ · seconds` a step from `starts`; ties to the smaller."""
        best, most = ROOT, -rate * self.times.step(1, self.levels)
        for depth in range(1, self.table.ids.shape[1] + 1) if len(starts) else ():
            counts = self.table.count(starts, depth)
            paths = self.table.most_frequent(counts, self.max_nodes - 1)
            seen = -np.sort(-counts, kind="stable")[: len(paths)]
            caught = np.cumsum(seen - DOUBT * np.sqrt(seen)) / len(starts)
            rows = range(2, len(paths) + 2)
            cost = np.array([self.times.step(n, max(depth, self.levels)) for n in rows])
            worth = caught - rate * cost
            if len(paths) and worth.max() > most:
                most = float(worth.max())
                best = Tree.from_paths(paths[: int(worth.argmax()) + 1])
        return best
