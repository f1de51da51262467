"""The best tree without gaps among siblings: a child only where all smaller ranks are.

Knows: paths and counts. Does not know: traces, times.

The most frequent paths may leave a gap, by chance or because a head is wrong in a regular way.
Without gaps a node may only come behind one other, its next smaller sibling or, for the best child,
its parent. Walk the nodes in preorder: one is taken, and the next in preorder may follow; or it is
left out, and with it its descendants and all its later siblings. The best value of every number of
nodes from every place is a table, filled from the end.

Dimension key: P candidate paths · B nodes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.walk import Places
from entmtp.trees import Path, Tree


class Counted(Protocol):
    """Paths, and how often they begin a future."""

    @property
    def paths(self) -> tuple[Path, ...]: ...

    def count(self, starts: Places, max_depth: int) -> Places: ...


def best_contiguous(table: Counted, max_depth: int, num_nodes: int, starts: Places) -> Tree:
    """The tree of `num_nodes` nodes, root included, without gaps, that accepts most at `starts`.

    Smaller where no more nodes help.
    """
    counts = table.count(starts, max_depth).tolist()
    seen = {path: n for path, n in zip(table.paths, counts, strict=True) if n}
    order = _candidates(seen, num_nodes - 1)
    behind = _behind_siblings(order)
    values = _values([seen.get(path, 0) for path in order], behind, num_nodes - 1)
    chosen: list[Path] = []
    place, left = 0, num_nodes - 1
    while place < len(order):
        if left and values[place, left] > values[behind[place], left]:
            chosen.append(order[place])
            place, left = place + 1, left - 1
        else:
            place = behind[place]
    return Tree.from_paths(chosen)


def _candidates(seen: dict[Path, int], most: int) -> list[Path]:
    """What may be part of a tree of `most` drafts, in preorder: a path needs all it stands on."""
    closed: set[Path] = set()
    for path in seen:
        if sum(path) + len(path) <= most:
            for depth in range(len(path)):
                closed.update((*path[:depth], rank) for rank in range(path[depth] + 1))
    return sorted(closed)


def _behind_siblings(order: list[Path]) -> list[int]:
    """For each path, the first place behind all descendants of its parent."""
    behind = [len(order)] * len(order)
    ends: dict[Path, int] = {}
    for place in range(len(order) - 1, -1, -1):
        path = order[place]
        # Seen from the end, the first descendant of a parent is its last.
        ends.setdefault(path[:-1], place + 1)
        for depth in range(len(path) - 1):
            ends.setdefault(path[:depth], place + 1)
        behind[place] = ends[path[:-1]]
    return behind


def _values(counts: list[int], behind: list[int], most: int) -> NDArray[np.int64]:
    """`[P + 1, B]`: most futures caught by up to 0, 1, … nodes from each place on."""
    values = np.zeros((len(counts) + 1, most + 1), dtype=np.int64)
    for place in range(len(counts) - 1, -1, -1):
        values[place] = values[behind[place]]
        taken = counts[place] + values[place + 1, :-1]
        values[place, 1:] = np.maximum(values[place, 1:], taken)
    return values
