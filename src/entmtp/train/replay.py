"""Replaying decoding from ranks: how many tokens a tree would have brought a step.

Knows: ranks of the true tokens under each head (a rank trace) and trees. Does not know: models,
heads, tensors of a training.

A trace of a row is `[A, K]`: at start i the root is answer token i, and `ranks[i, k]` is the rank
of answer token i + k + 1 under head k given the true tokens before it; `MISS` where the head
cannot propose it or the row has ended. A step accepts the longest `(ranks[i, 0] … )` that is a
path of the tree, emits one token more, and the next step starts there (METHOD 6.3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.trees import Tree

MISS = 2**30
"""The rank of what no head can propose."""
MAX_RANK = 64
"""Deeper ranks never enter a tree found by counting."""

Ranks = NDArray[np.int64]
Path = tuple[int, ...]


class Replayed(NamedTuple):
    """Counts of a replayed run."""

    num_emitted: int
    num_drafts: int

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a step, the bonus token included."""
        return self.num_emitted / self.num_drafts if self.num_drafts else 0.0


def replay_row(ranks: Ranks, paths: Collection[Path]) -> Replayed:
    """Walk one row as decoding would with the tree of these paths."""
    num_tokens, depth = ranks.shape
    values = ranks.tolist()
    start = num_emitted = num_drafts = 0
    while start + 1 < num_tokens:
        accepted = 0
        while accepted < depth and tuple(values[start][: accepted + 1]) in paths:
            accepted += 1
        emitted = min(accepted + 1, num_tokens - 1 - start)
        num_emitted += emitted
        num_drafts += 1
        start += emitted
    return Replayed(num_emitted, num_drafts)


def mean_acceptance_length(traces: Sequence[Ranks], tree: Tree) -> float:
    """Mean acceptance length of a tree over rows, the bonus token included."""
    paths = frozenset(tree.paths)
    runs = [replay_row(ranks, paths) for ranks in traces]
    total = Replayed(sum(r.num_emitted for r in runs), sum(r.num_drafts for r in runs))
    return total.mean_acceptance_length


def path_counts(traces: Sequence[Ranks]) -> Counter[Path]:
    """How often each rank path was the true one, over all starts."""
    counts: Counter[Path] = Counter()
    for ranks in traces:
        for row in ranks.tolist():
            for depth in range(1, len(row) + 1):
                if row[depth - 1] >= MAX_RANK:
                    break
                counts[tuple(row[:depth])] += 1
    return counts


def best_static_tree(traces: Sequence[Ranks], num_nodes: int) -> Tree:
    """The tree of `num_nodes` nodes (root included) that holds the true path most often.

    These are the most frequent paths; a path is never more frequent than its beginning, so the
    set is prefix-closed. Ties go to the shallower and then to the smaller path.
    """
    counts = path_counts(traces)
    ordered = sorted(counts, key=lambda path: (-counts[path], len(path), path))
    return Tree.from_paths(ordered[: num_nodes - 1])


def top_shares(traces: Sequence[Ranks], limits: Sequence[int]) -> list[list[float]]:
    """For each head, the share of its labels that its best 1, 3, … proposals hold."""
    depth = traces[0].shape[1]
    shares = []
    for head in range(depth):
        # The last head + 1 starts of a row have no label for this head.
        values = np.concatenate([ranks[: max(0, len(ranks) - head - 1), head] for ranks in traces])
        shares.append([float((values < limit).mean()) if len(values) else 0.0 for limit in limits])
    return shares
