"""Candidate trees of a bank: what could pay on some machine, from the trace alone.

Knows: traces. Does not know: times. So the same prompts and seed give the same trees wherever and
whenever they are made; which of them are worth having here, `offer.py` says.

All of them are parts of the trace's wide tree. That bounds what a policy over several of them has
to draft, and lets a replay run every policy as it is.

Dimension key: N starts · K draft heads.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from entmtp.calibrate.bands import DOUBT
from entmtp.calibrate.best import PathTable, best_trees
from entmtp.calibrate.monotone import bins_of, quantile_edges
from entmtp.calibrate.scores import scores
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.calibrate.walk import Places, reach, row_ends
from entmtp.trees import ROOT, Path, Tree, chain

SIZES = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
"""Nodes of candidates, the root included: about as many as a size twice as large is worth"""
NUM_BANDS = 4
"""Of how sure the heads are; each has trees of its own"""
MIN_STARTS = 200
"""In a band: paths are counted there, and rare ones need many starts"""


def candidate_trees(trace: RankTrace) -> tuple[Tree, ...]:
    """The root alone, the best tree of many sizes and depths, and of each band; by size.

    At least one of them drafts.
    """
    seen = within(trace, trace.wide_tree)
    most = trace.wide_tree.num_nodes
    trees = {ROOT}
    for depth in range(1, trace.wide_tree.depth + 1):
        best = best_trees(seen, most, depth)
        trees.update(best[size - 1] for size in SIZES if size <= len(best))
        trees.update(_in_bands(seen, depth))
    if len(trees) == 1:
        trees.add(chain(1))
    return tuple(sorted(trees, key=lambda tree: (tree.num_nodes, tree.paths)))


def within(trace: RankTrace, tree: Tree) -> RankTrace:
    """The same trace, where nothing is ever right that is not in `tree`."""
    depths = reach(trace.ranks, tree).depths
    is_in = np.arange(trace.ranks.shape[1]) < depths[:, None]
    return replace(trace, ranks=np.where(is_in, trace.ranks, np.int32(MISS)))


def _in_bands(trace: RankTrace, depth: int) -> set[Tree]:
    """Of each band of the greedy path's value, the most frequent paths there."""
    name = f"g{min(depth, trace.wide_tree.num_best)}"
    known = scores(trace).get(name)
    begin = np.flatnonzero(np.arange(len(trace.ranks)) < row_ends(trace))
    num_bands = min(NUM_BANDS, len(begin) // MIN_STARTS)
    if known is None or num_bands < 2:
        return set()
    values = known.values[begin]
    bands = bins_of(values, quantile_edges(values, num_bands))
    table = PathTable.of(trace)
    trees: set[Tree] = set()
    for band in range(int(bands.max()) + 1):
        paths = _trusted(table, table.count(begin[bands == band], depth))
        trees.update(Tree.from_paths(paths[: size - 1]) for size in SIZES if size - 1 <= len(paths))
    return trees


def _trusted(table: PathTable, counts: Places) -> list[Path]:
    """Paths by how often they were seen, as long as that is more than chance (`bands.DOUBT`)."""
    seen = counts - DOUBT * np.sqrt(counts)
    return table.most_frequent(np.where(seen > 0, counts, 0), max(SIZES) - 1)
