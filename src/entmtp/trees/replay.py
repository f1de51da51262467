"""Replaying decoding from ranks: how far a tree would have come at each start of an answer.

Knows: ranks of the true tokens under each head, rows, trees. Does not know: models, heads, who
measured, time.

At a *start* an answer token is the root; `ranks[i, k]` is the rank of the (k + 1)-th token behind
it under head k given the true tokens in between, `MISS` where the head cannot propose it or the
row has ended. A step accepts the longest `(ranks[i, 0], ranks[i, 1], …)` that is a path of the
tree, emits one token more, and the next step starts there (METHOD §6.3). The last token of a row
is never counted as accepted: it ends the answer, whether it was drafted or is the bonus token.

Dimension key: N starts of all rows · K draft heads · R rows · S starts that a run visits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.trees.tree import Path, Tree

MISS = 2**30
"""The rank of what no head can propose, and of what lies behind the end of a row."""
MAX_RANK = 64
"""Ranks from here on never enter a tree found by counting; a measured trace has `MISS` for them."""

Ranks = NDArray[np.integer]
Counts = NDArray[np.int64]


class RankRows(NamedTuple):
    """The ranks of many answers, end to end."""

    ranks: Ranks  # [N, K]
    row_starts: Counts  # [R + 1] where each row begins, then N

    @classmethod
    def of(cls, rows: Sequence[Ranks]) -> RankRows:
        """From the ranks `[A, K]` of each answer."""
        ends = np.cumsum([len(row) for row in rows])
        return cls(np.concatenate(rows), np.concatenate([[0], ends]).astype(np.int64))

    @property
    def lengths(self) -> Counts:
        """Tokens of each row."""
        return np.diff(self.row_starts)


def matched_depths(ranks: Ranks, tree: Tree) -> Counts:
    """How deep the true path lies in a tree at each start `[N]`, whatever ends behind it."""
    children = _children(tree)
    nodes = np.zeros(len(ranks), dtype=np.int64)
    depths = np.zeros(len(ranks), dtype=np.int64)
    # The last column belongs to all ranks that no node has.
    known = np.minimum(ranks[:, : tree.depth], children.shape[1] - 1)
    for level in known.T:
        nodes = children[nodes, level]
        depths += nodes < tree.num_nodes
    return depths


@lru_cache(maxsize=512)
def _children(tree: Tree) -> Counts:
    """Which node hangs under a node with a rank, `[T + 1, max rank + 2]`; T where there is none.

    Nothing hangs under T.
    """
    table = np.full((tree.num_nodes + 1, tree.max_rank + 2), tree.num_nodes)
    for node, path in enumerate(tree.paths):
        if path:
            table[tree.parents[node], path[-1]] = node
    return table


def remaining_tokens(row_starts: Counts) -> Counts:
    """How many tokens of its row lie behind each start `[N]`."""
    ends = np.repeat(row_starts[1:], np.diff(row_starts))
    return np.asarray(ends - 1 - np.arange(len(ends)), dtype=np.int64)


def accepted_lengths(rows: RankRows, tree: Tree) -> Counts:
    """Drafts that a step accepts at each start `[N]`; 0 at the last token of a row."""
    room = np.maximum(remaining_tokens(rows.row_starts) - 1, 0)
    return np.minimum(matched_depths(rows.ranks, tree), room)


def visited_starts(accepted: Counts, row_starts: Counts) -> Counts:
    """The starts `[S]` of a run that accepts `accepted` `[N]` there, in order, row by row.

    The last token of a row starts no step.
    """
    last = row_starts[1:] - 1
    here = row_starts[:-1]
    visited = []
    while (here := here[(is_on := here < last)]).size:
        last = last[is_on]
        visited.append(here)
        here = here + 1 + accepted[here]
    return np.sort(np.concatenate(visited)) if visited else np.zeros(0, dtype=np.int64)


def mean_acceptance_length(rows: RankRows, tree: Tree) -> float:
    """Tokens a step of a run over all rows, the bonus token included; 0 without a step."""
    accepted = accepted_lengths(rows, tree)
    visited = visited_starts(accepted, rows.row_starts)
    return float(1 + accepted[visited].mean()) if visited.size else 0.0


def path_counts(ranks: Ranks, weights: NDArray[np.floating] | None = None) -> dict[Path, float]:
    """How often each rank path of ranks below `MAX_RANK` was the true one.

    Args:
        weights: of each start `[N]`; without, each counts once.
    """
    weight = np.ones(len(ranks)) if weights is None else weights
    counts: dict[Path, float] = {}
    paths: list[Path] = [()]
    parents = np.zeros(len(ranks), dtype=np.int64)  # place in `paths`
    starts = np.arange(len(ranks))
    for head in range(ranks.shape[1]):
        is_known = ranks[starts, head] < MAX_RANK
        starts, parents = starts[is_known], parents[is_known]
        keys, parents = np.unique(parents * MAX_RANK + ranks[starts, head], return_inverse=True)
        paths = [(*paths[key // MAX_RANK], int(key % MAX_RANK)) for key in keys.tolist()]
        sums = np.bincount(parents, weight[starts], minlength=len(paths))
        counts |= zip(paths, sums.tolist(), strict=True)
    return counts


def best_static_tree(
    ranks: Ranks, num_nodes: int, weights: NDArray[np.floating] | None = None
) -> Tree:
    """The tree of `num_nodes` nodes (root included) that holds the true path most often.

    These are the most frequent paths; a path is never more frequent than its beginning, so the
    set is prefix-closed. Ties go to the shallower and then to the smaller path. Fewer nodes where
    there are not as many paths.
    """
    counts = path_counts(ranks, weights)
    ordered = sorted(counts, key=lambda path: (-counts[path], len(path), path))
    return Tree.from_paths(ordered[: num_nodes - 1])
