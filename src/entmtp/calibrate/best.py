"""The best static tree of every size, by counting paths (METHOD §6.3).

Knows: traces. Does not know: times.

Expected accepted drafts are the sum, over the nodes of a tree, of how often the node's path is the
beginning of the true future. So the best tree of N nodes is the N most frequent paths. A path is
never more frequent than its beginning: they are a tree. What counts are the starts that a run with
that very tree visits, so counting and walking take turns.

Counts are whole numbers and ties have an order: the same trace gives the same trees, bit for bit.

Dimension key: N starts · K draft heads · P paths · S visited starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from entmtp.calibrate.contiguous import best_contiguous
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, accepted_at, futures, visited
from entmtp.trees import ROOT, Path, Tree

MAX_NODES = 64
"""Of a tree, the root included"""
MAX_RANK = 64
"""Deeper ranks never enter a tree"""
NUM_ROUNDS = 3
"""Of counting and walking"""


@dataclass(frozen=True)
class PathTable:
    """Every path that begins a true future of a trace."""

    paths: tuple[Path, ...]
    """By depth and then by ranks"""
    ids: Places  # [N, K] which of `paths` begins each future at each depth; -1 for none

    @classmethod
    def of(cls, trace: RankTrace) -> PathTable:
        ranks = futures(trace).astype(np.int64)
        paths: list[Path] = []
        ids = np.full(ranks.shape, -1, dtype=np.int64)
        level: list[Path] = [()]
        parents = np.zeros(len(ranks), dtype=np.int64)  # places in `level`
        for depth in range(ranks.shape[1]):
            is_on = (parents >= 0) & (ranks[:, depth] < MAX_RANK)
            keys, places = np.unique(
                parents[is_on] * MAX_RANK + ranks[is_on, depth], return_inverse=True
            )
            ids[is_on, depth] = len(paths) + places
            parents = np.where(is_on, ids[:, depth] - len(paths), -1)
            level = [(*level[key // MAX_RANK], key % MAX_RANK) for key in keys.tolist()]
            paths += level
        return cls(tuple(paths), ids)

    def count(self, starts: Places, max_depth: int) -> Places:
        """How often each path begins the future of one of `starts`; deeper ones never."""
        ids = self.ids[starts, :max_depth]
        return np.bincount(ids[ids >= 0], minlength=len(self.paths))

    def most_frequent(self, counts: Places, most: int) -> list[Path]:
        """Up to `most` paths; ties to the shallower, then to the smaller. Never seen, never in."""
        order = np.argsort(-counts, kind="stable")[:most]
        return [self.paths[place] for place in order.tolist() if counts[place]]


def best_trees(
    trace: RankTrace,
    max_nodes: int = MAX_NODES,
    max_depth: int | None = None,
    *,
    is_contiguous: bool = False,
) -> tuple[Tree, ...]:
    """The best tree of 1, 2, … `max_nodes` nodes, the root included.

    They end early where the trace has no more paths.

    Args:
        is_contiguous: only trees in which a child has all siblings of smaller rank, as buffers
            like Hydra's need them.
    """
    table = PathTable.of(trace)
    depth = trace.ranks.shape[1] if max_depth is None else max_depth
    choose = best_contiguous if is_contiguous else _most_frequent
    trees = [ROOT]
    starts = visited(trace, accepted_at(trace, ROOT))
    for num_nodes in range(2, max_nodes + 1):
        tree, starts = _best(trace, partial(choose, table, depth, num_nodes), starts)
        if tree.num_nodes < num_nodes:
            break
        trees.append(tree)
    return tuple(trees)


def frontier(trace: RankTrace, max_nodes: int = MAX_NODES) -> tuple[Tree, ...]:
    """The best trees of every size for each greatest depth, by ascending size, each once.

    A shallower tree accepts less and drafts faster; which is better, times must say.
    """
    depths = range(1, trace.ranks.shape[1] + 1)
    trees = {tree for depth in depths for tree in best_trees(trace, max_nodes, depth)}
    return tuple(sorted(trees, key=lambda tree: (tree.num_nodes, tree.paths)))


def _best(
    trace: RankTrace, choose: Callable[[Places], Tree], starts: Places
) -> tuple[Tree, Places]:
    """Count and walk in turns; the tree with the fewest steps of its own, and its starts."""
    tried: dict[Tree, Places] = {}
    for _ in range(NUM_ROUNDS):
        tree = choose(starts)
        if tree in tried:
            break
        starts = tried[tree] = visited(trace, accepted_at(trace, tree))
    best = min(tried, key=lambda tree: len(tried[tree]))
    return best, tried[best]


def _most_frequent(table: PathTable, max_depth: int, num_nodes: int, starts: Places) -> Tree:
    counts = table.count(starts, max_depth)
    return Tree.from_paths(table.most_frequent(counts, num_nodes - 1))
