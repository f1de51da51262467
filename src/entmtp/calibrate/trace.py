"""A rank trace: at every position of lossless answers, what the heads said of the true future.

Knows: the arrays and what they mean. Does not know: how they were collected, trees of a bank.

A *start* is an answer token that may be the root of a step. At start i the true future is the
answer tokens behind it; `ranks[i, k]` is the rank of the (k + 1)-th of them under head k given the
true tokens in between (METHOD §6.3). A step from start i with a tree accepts the longest
`(ranks[i, 0], ranks[i, 1], …)` that is a path of the tree, and the next start lies one token
behind what was accepted. The last token of a row never counts as accepted (`trees/replay.py`).

Dimension key: N starts of all rows · K draft heads · M nodes of the wide tree · R rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entmtp.trees import Tree
from entmtp.trees.replay import MISS, Counts, RankRows, remaining_tokens

__all__ = ["MISS", "RankTrace"]


@dataclass(frozen=True)
class RankTrace:
    """Every answer token of every row, in order; the last token of a row starts no step."""

    ranks: NDArray[np.int32]  # [N, K]; MISS where there is none
    wide_tree: Tree
    """The tree whose nodes `log_probs` speaks of: all that a tree made for a step may consist of"""
    log_probs: NDArray[np.float32]  # [N, M] of each node given its parent, by its head; root 0
    root_probability: NDArray[np.float32]  # [N] top-1 of the distribution the start came from
    root_entropy: NDArray[np.float32]  # [N] of the same, in nats; both at temperature 1
    row_starts: NDArray[np.int64]  # [R + 1] where each row begins, then N
    prompt_lengths: NDArray[np.int64]  # [R] tokens in front of each row's first start
    kinds: tuple[str, ...]
    """Workload of each row"""

    @property
    def num_rows(self) -> int:
        return len(self.kinds)

    @property
    def rank_rows(self) -> RankRows:
        """What `trees.replay` walks."""
        return RankRows(self.ranks, self.row_starts)

    @property
    def remaining(self) -> Counts:
        """`[N]` tokens of its row behind each start; `ranks[i, k]` has a label if more than k."""
        return remaining_tokens(self.row_starts)

    def rows(self) -> Iterator[slice]:
        """The starts of each row."""
        for first, end in zip(self.row_starts[:-1], self.row_starts[1:], strict=True):
            yield slice(int(first), int(end))
