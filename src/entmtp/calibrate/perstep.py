"""Trees made for one step: which nodes of the wide tree, ranked by what they are worth.

Knows: traces, node values. Does not know: banks, times.

A node is worth the product of its chances along its path. A worth never grows along a path, so
the best nodes of any number are a tree. The true path is one path of the wide tree: where each of
its nodes comes in the ranking says how many nodes a step needs to accept it.

Dimension key: N starts · K draft heads · M nodes of the wide tree.
"""

from __future__ import annotations

import numpy as np

from entmtp.calibrate.chooser import NodeValues
from entmtp.calibrate.monotone import Floats, bins_of, quantile_edges, rising_means
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, futures, reach, row_ends

NUM_BINS = 12
"""Of equally many nodes of a depth, and as many of equally many expected hits"""


def fit_node_values(trace: RankTrace) -> NodeValues:
    """How often a node was the true one where its parent was on the true path.

    Each bin counts one observation more than was made, which believes the head: a bin that few
    nodes fall into says about what the head says.
    """
    depths = range(1, trace.wide_tree.depth + 1)
    fitted = [_fit(*_observed(trace, depth)) for depth in depths]
    return NodeValues(
        tuple(edges for edges, _ in fitted),
        tuple(levels for _, levels in fitted),
        tuple(_reach(trace, depth) for depth in depths),
        tuple(range(1, trace.wide_tree.num_nodes + 1)),
        0.0,
    )


def _reach(trace: RankTrace, depth: int) -> float:
    above, below = (
        reach(futures(trace)[:, :d], trace.wide_tree).depths for d in (depth - 1, depth)
    )
    at = (above == depth - 1) & (row_ends(trace) - np.arange(len(above)) > depth)
    return float((below[at] == depth).mean()) if at.any() else 0.0


def _fit(log_probs: Floats, hits: Floats) -> tuple[tuple[float, ...], tuple[float, ...]]:
    said = np.exp(log_probs)
    # Most nodes are unlikely, and most hits are likely nodes: both need bins.
    both = {*quantile_edges(log_probs, NUM_BINS), *quantile_edges(log_probs, NUM_BINS, said)}
    edges = tuple(sorted(both))
    places = np.arange(len(edges) + 1)
    bins = bins_of(log_probs, edges)
    believed = np.bincount(bins, said, len(places)) / np.maximum(
        np.bincount(bins, minlength=len(places)), 1
    )
    chances = rising_means(
        np.concatenate([bins, places]), np.concatenate([hits, believed]), len(places)
    )
    return edges, tuple(min(chance, 1.0) for chance in chances)


def _observed(trace: RankTrace, depth: int) -> tuple[Floats, Floats]:
    """Of all nodes at `depth` whose parents were on the true path: log-probability, and hit."""
    tree, ranks = trace.wide_tree, futures(trace)
    # At the end of a row there is no future to be hit.
    has_future = row_ends(trace) - np.arange(len(ranks)) > depth
    parents = reach(ranks[:, : depth - 1], tree)
    log_probs, hits = [], []
    for node, path in enumerate(tree.paths):
        if len(path) == depth:
            at = has_future & (parents.depths == depth - 1)
            at &= parents.nodes == tree.parents[node]
            log_probs.append(trace.log_probs[at, node].astype(np.float64))
            hits.append((ranks[at, depth - 1] == path[-1]).astype(np.float64))
    return np.concatenate(log_probs), np.concatenate(hits)


def worths(trace: RankTrace, values: NodeValues | None = None) -> Floats:
    """What each node is worth, `[N, M]`; the heads' own word without fitted values."""
    tree = trace.wide_tree
    depths = np.array(tree.depths)
    chances = np.exp(trace.log_probs.astype(np.float64))
    if values is not None:
        for depth, (edges, levels) in enumerate(
            zip(values.edges, values.levels, strict=True), start=1
        ):
            level = depths == depth
            bins = bins_of(trace.log_probs[:, level].astype(np.float64), edges)
            chances[:, level] = np.array(levels)[bins]
    worth = np.minimum(chances, 1.0)
    for node, parent in enumerate(tree.parents[1:], start=1):
        worth[:, node] *= worth[:, parent]
    return worth


def true_places(trace: RankTrace, worth: Floats, max_depth: int) -> Places:
    """Where each true node comes among the drafts no deeper than `max_depth`, `[N, max_depth]`.

    From 0; ties to the smaller node id. M where the wide tree lacks it or the row ends before.
    """
    tree = trace.wide_tree
    num = sum(depth <= max_depth for depth in tree.depths)
    order = np.argsort(-worth[:, 1:num], axis=1, kind="stable")
    place_of = np.empty_like(order)
    np.put_along_axis(place_of, order, np.arange(num - 1)[None, :], axis=1)
    places = np.full((len(worth), max_depth), tree.num_nodes, dtype=np.int64)
    ranks = futures(trace)
    for depth in range(1, max_depth + 1):
        reached = reach(ranks[:, :depth], tree)
        is_on = reached.depths == depth
        places[is_on, depth - 1] = place_of[is_on, reached.nodes[is_on] - 1]
    return places


def accepted_with(places: Places, num_drafts: Places | int) -> Places:
    """Drafts accepted `[N]` by a step with its `num_drafts` (of each start) best nodes."""
    limit = np.broadcast_to(num_drafts, len(places))[:, None]
    accepted: Places = (places < limit).sum(axis=1)
    return accepted
