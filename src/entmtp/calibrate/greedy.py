"""The paper's greedy construction of trees, node by node (METHOD §1.3).

Knows: rollouts. Does not know: where they come from (a trace here, a model in `rollout`), times.

One run for each greatest depth D. It starts with the best child of the root alone. The frontier
is the next child, by rank, of the root and of each node above depth D. A *rollout* verifies the
tree together with its whole frontier, but goes on as the tree alone would. The tree with each
frontier node added is scored on those same steps, by drafts accepted a step; the best is kept.

That score is not what the grown tree would get from a rollout of its own (`recalibrate`).

Dimension key: S steps of a rollout · K draft heads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.calibrate.walk import Ranks, accepted_at, futures, reach, visited
from entmtp.trees import Path, Tree

MAX_DRAFTS = 89
"""floor(1.4 · 64): the paper's largest budget with its tolerance; the root is not counted"""
MAX_CHILDREN = 100
"""Of one node"""

Rollout = Callable[[Tree, Tree], Ranks]
"""(tree, union) to `[S, K]`: for each step of a run that goes on by `tree`, the ranks of the true
path as far as `union`, which holds the tree, was on it; `MISS` behind."""


class Grown(NamedTuple):
    """A tree of a run of the greedy construction."""

    tree: Tree
    biased_mean_accepted: float
    """Drafts a step, scored as its predecessor's candidate; of the first tree, its own"""


def grow(rollout: Rollout, max_depth: int, max_drafts: int = MAX_DRAFTS) -> tuple[Grown, ...]:
    """One run: a tree of every size from 1 draft to `max_drafts`, none deeper than `max_depth`.

    Ties in accepted drafts go to the smaller sum of ranks, then to the smaller depth, and where
    the paper's code takes what comes first, to the smaller path.
    """
    tree = Tree.from_paths([(0,)])
    grown: list[Grown] = []
    while frontier := _frontier(tree, max_depth):
        paths = rollout(tree, Tree.from_paths([*tree.paths, *frontier.values()]))
        num_steps = max(len(paths), 1)
        accepted, gains = _score(paths, tree, frontier)
        if not grown:
            grown.append(Grown(tree, accepted / num_steps))
        if tree.num_draft_tokens >= max_drafts:
            break
        order = {node: (-gains[node], *_cost(path)) for node, path in frontier.items()}
        parent = min(order, key=order.__getitem__)
        tree = Tree.from_paths([*tree.paths, frontier[parent]])
        grown.append(Grown(tree, (accepted + gains[parent]) / num_steps))
    return tuple(grown)


def grow_all(
    rollout: Rollout, num_draft_heads: int, max_drafts: int = MAX_DRAFTS
) -> tuple[tuple[Grown, ...], ...]:
    """A run for each greatest depth from 1 to the number of heads."""
    depths = range(1, num_draft_heads + 1)
    return tuple(grow(rollout, depth, max_drafts) for depth in depths)


def replay_rollout(trace: RankTrace) -> Rollout:
    """Rollouts as table walks: what a live one sees, without a model."""
    ranks = futures(trace)

    def rollout(tree: Tree, union: Tree) -> Ranks:
        starts = visited(trace, accepted_at(trace, tree))
        steps = ranks[starts]
        depths = reach(steps, union).depths
        return np.where(np.arange(steps.shape[1]) < depths[:, None], steps, np.int32(MISS))

    return rollout


def _frontier(tree: Tree, max_depth: int) -> dict[int, Path]:
    """By parent node, the child that it may get next."""
    num_children = [0] * tree.num_nodes
    for parent in tree.parents[1:]:
        num_children[parent] += 1
    return {
        node: (*path, num_children[node])
        for node, path in enumerate(tree.paths)
        if len(path) < max_depth and num_children[node] < MAX_CHILDREN
    }


def _score(paths: Ranks, tree: Tree, frontier: dict[int, Path]) -> tuple[int, list[int]]:
    """Drafts that the tree accepts in all steps, and how many more with each node's next child.

    A new leaf adds one draft in the steps that ended at its parent with its rank next.
    """
    nodes, depths = reach(paths, tree)
    behind = np.concatenate([paths, np.full((len(paths), 1), MISS, paths.dtype)], axis=1)
    next_ranks = behind[np.arange(len(paths)), depths]
    wanted = np.array([frontier[n][-1] if n in frontier else -1 for n in range(tree.num_nodes)])
    hits = nodes[next_ranks == wanted[nodes]]
    return int(depths.sum()), np.bincount(hits, minlength=tree.num_nodes).tolist()


def _cost(path: Path) -> tuple[int, int, Path]:
    return sum(path), len(path), path
