"""Walking a rank trace as decoding would: what a tree accepts, where the next step begins.

Knows: ranks and trees. Does not know: times, scores, which tree is good.

A step is cut to what may still be said: it never accepts the last token of a row as a draft, so
it emits exactly `accepted + 1` tokens. All steps of a row together emit its tokens but the first,
whatever the trees.

Dimension key: N starts of all rows · K draft heads · R rows · S visited starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.errors import BadInput
from entmtp.trees import Tree
from entmtp.trees.replay import accepted_lengths, visited_starts

Ranks = NDArray[np.int32]
Places = NDArray[np.int64]


class Reached(NamedTuple):
    """How far true futures lead down a tree."""

    nodes: Places  # [S] the last node on the path
    depths: Places  # [S] its depth: what a step accepts


def reach(ranks: Ranks, tree: Tree) -> Reached:  # [S, K]
    """Follow each future from the root, as long as the tree has the child of its rank."""
    nowhere, width = tree.num_nodes, tree.max_rank + 2
    child = np.full((nowhere + 1, width), nowhere, dtype=np.int64)
    for node, parent in enumerate(tree.parents[1:], start=1):
        child[parent, tree.paths[node][-1]] = node
    nodes = np.zeros(len(ranks), dtype=np.int64)
    depths = np.zeros(len(ranks), dtype=np.int64)
    at = nodes
    for depth in range(min(tree.depth, ranks.shape[1])):
        at = child[at, np.minimum(ranks[:, depth], width - 1)]
        is_on = at != nowhere
        nodes = np.where(is_on, at, nodes)
        depths += is_on
    return Reached(nodes, depths)


def row_ends(trace: RankTrace) -> Places:
    """Of each start `[N]`, the last token of its row."""
    ends: Places = np.repeat(trace.row_starts[1:] - 1, np.diff(trace.row_starts))
    return ends


def futures(trace: RankTrace) -> Ranks:
    """`trace.ranks`, cut to the drafts that a step may still accept."""
    most = row_ends(trace) - np.arange(len(trace.ranks)) - 1
    is_over = np.arange(trace.ranks.shape[1]) >= most[:, None]
    return np.where(is_over, np.int32(MISS), trace.ranks)


def accepted_at(trace: RankTrace, tree: Tree) -> Places:
    """Drafts `[N]` that a step with this tree accepts at every start."""
    return accepted_lengths(trace.rank_rows, tree)


def next_starts(trace: RankTrace, accepted: Places) -> Places:  # [N]
    """Where the step behind each start begins; the last token of a row leads to itself."""
    behind: Places = np.minimum(np.arange(len(accepted)) + 1 + accepted, row_ends(trace))
    return behind


def visited(trace: RankTrace, accepted: Places) -> Places:  # [N]
    """The starts `[S]` of a run that accepts `accepted`, in order."""
    return visited_starts(accepted, trace.row_starts)


def rows_of(trace: RankTrace, starts: Places) -> Places:  # [S]
    """The row of each start."""
    rows: Places = np.searchsorted(trace.row_starts, starts, side="right") - 1
    return rows


def row_tokens(trace: RankTrace) -> Places:
    """What the steps of each row `[R]` emit: all but its first token, which prefill brings."""
    tokens: Places = np.maximum(np.diff(trace.row_starts) - 1, 0)
    return tokens


def num_rows_with_steps(trace: RankTrace) -> int:
    """Rows that say something of drafts: an answer of one token has no step."""
    return int((row_tokens(trace) > 0).sum())


def take_rows(trace: RankTrace, rows: Sequence[int]) -> RankTrace:
    """A trace of some of the rows, in the order given."""
    slices = list(trace.rows())
    lengths = [slices[row].stop - slices[row].start for row in rows]
    places = np.concatenate(
        [np.arange(0), *(np.arange(slices[row].start, slices[row].stop) for row in rows)]
    ).astype(np.int64)
    return RankTrace(
        trace.ranks[places],
        trace.wide_tree,
        trace.log_probs[places],
        trace.root_probability[places],
        trace.root_entropy[places],
        np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        trace.prompt_lengths[list(rows)],
        tuple(trace.kinds[row] for row in rows),
    )


def halves(trace: RankTrace, seed: int = 0) -> tuple[RankTrace, RankTrace]:
    """Two halves of the rows, each with its share of every kind, and of the rows with a step.

    Raises:
        BadInput: there are fewer than two rows with a step.
    """
    if (count := num_rows_with_steps(trace)) < 2:
        raise BadInput(
            f"{count} of {trace.num_rows} answers have a second token, which is too few to halve;"
            " calibrate on at least 2"
        )
    first, second = half_rows(trace, seed)
    return take_rows(trace, first), take_rows(trace, second)


def half_rows(trace: RankTrace, seed: int = 0) -> tuple[list[int], list[int]]:
    """The rows of the two `halves`, each ascending."""
    order = np.random.default_rng(seed).permutation(trace.num_rows).tolist()
    tokens = row_tokens(trace).tolist()
    by_kind = sorted(order, key=lambda row: (tokens[row] == 0, trace.kinds[row]))
    return sorted(by_kind[::2]), sorted(by_kind[1::2])
