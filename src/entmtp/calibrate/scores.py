"""What is known in front of a step, for every start of a trace, as one number each.

Knows: traces. Does not know: what the target then accepts, trees of a bank, times.

Larger always means more predictable. Each score says how much of the draft must be there before
it is known: one that needs two levels cannot save them.

Dimension key: N starts · K draft heads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, next_starts
from entmtp.trees import Tree


@dataclass(frozen=True)
class Score:
    """One number for each start."""

    name: str
    values: Floats  # [N]
    levels: int
    """Levels of the draft that it is read from"""

    @property
    def reads_root(self) -> bool:
        """Whether it is made of the signals of the root."""
        return self.name == "entropy" or self.name.startswith("p0")


def scores(trace: RankTrace) -> dict[str, Score]:
    """Every score that does not depend on what was accepted before, by name (METHOD §1.4).

    p0       the root's top-1 probability
    entropy  of the root's distribution, its sign turned
    cD       confidence of head D's best child on the greedy path
    gD       the greedy path's value c_1 · … · c_D
    p0gD     the same with p0 in front, as the paper has it
    sum_g    g_1 + g_2 + …: expected drafts of the greedy chain, if the heads are right about
             themselves
    sum_tree the same over all paths of the wide tree
    """
    root = trace.root_probability.astype(np.float64)
    found = [Score("p0", root, 0), Score("entropy", -trace.root_entropy.astype(np.float64), 0)]
    confidences = confidences_of(trace)
    value, total = np.ones(len(root)), np.zeros(len(root))
    for depth in range(1, confidences.shape[1] + 1):
        confidence = confidences[:, depth - 1]
        value = value * confidence
        total = total + value
        found.append(Score(f"c{depth}", confidence, depth))
        found.append(Score(f"g{depth}", value, depth))
        found.append(Score(f"p0g{depth}", root * value, depth))
    if confidences.shape[1]:
        found.append(Score("sum_g", total, confidences.shape[1]))
        found.append(Score("p0sum_g", root * total, confidences.shape[1]))
    found.append(tree_score(trace, trace.wide_tree))
    return {score.name: score for score in found}


def tree_score(trace: RankTrace, tree: Tree) -> Score:
    """The sum of the probabilities of a tree's paths, so far as they are in the wide tree."""
    wide = trace.wide_tree
    log_paths = trace.log_probs.astype(np.float64)
    for node, parent in enumerate(wide.parents[1:], start=1):
        log_paths[:, node] += log_paths[:, parent]
    wanted = set(tree.paths[1:])
    nodes = [node for node, path in enumerate(wide.paths) if path in wanted]
    return Score("sum_tree", np.exp(log_paths[:, nodes]).sum(axis=1), tree.depth)


def confidences_of(trace: RankTrace) -> Floats:
    """c_1, c_2, … `[N, D]` as far as the wide tree has the best child of best children."""
    depths = trace.wide_tree.depths
    places = [depths.index(depth) for depth in range(1, trace.wide_tree.num_best + 1)]
    return np.exp(trace.log_probs[:, places].astype(np.float64))


def acceptance_average(trace: RankTrace, accepted: Places, share: float = 0.3) -> Score:  # [N]
    """A running mean of what a run's last steps accepted: each new step counts for `share`.

    It begins anew with every row, at 1. Between visited starts it stays as it was: only at
    `visited(trace, accepted)` is it what a run would know.
    """
    behind = next_starts(trace, accepted).tolist()
    values = np.ones(len(accepted))
    for row in trace.rows():
        average, start = 1.0, row.start
        while start < row.stop:
            end = max(behind[start], start + 1)
            values[start:end] = average
            average += share * (float(accepted[start]) - average)
            start = end
    return Score("accepted", values, 0)
