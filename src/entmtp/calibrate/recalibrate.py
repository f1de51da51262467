"""What a greedily grown tree truly accepts, beside the score that it was chosen by.

Knows: traces and grown trees. Does not know: times.

Where the two differ, under the exact rule. The text is the target's own whatever the tree, and a
node's logits do not depend on its company: so verifying the union is no fault in itself, and at
any one start the candidate's accepted drafts are scored right. Wrong is *which* starts are scored:
those that its predecessor visits. Where the new leaf is hit, the candidate itself would have gone
on one token further, and would never have seen the start in between. Hits come in runs (a stretch
where rank 1 is right again and again): the predecessor stops inside such a run at every token and
counts a gain each time, where the candidate jumps over every second one. Then the score is
optimistic; it can also be too low, where the skipped start is one that accepts little. The best of
many noisy scores is taken besides, which only a judgement on other rows shows
(`throughput.judge`). Under typical acceptance, the paper's own, the text depends on the tree too;
a trace does not know that part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entmtp.calibrate.greedy import Grown
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import accepted_at, visited
from entmtp.trees import Tree

TOLERANCE = 1e-9
"""What counts as more; the paper's."""


@dataclass(frozen=True)
class Recalibrated:
    """Drafts accepted a step, as scored while growing and in a rollout of the tree's own."""

    tree: Tree
    biased_mean_accepted: float
    true_mean_accepted: float

    @property
    def bias(self) -> float:
        """Positive where the construction was optimistic."""
        return self.biased_mean_accepted - self.true_mean_accepted


def recalibrate(trace: RankTrace, grown: Sequence[Grown]) -> tuple[Recalibrated, ...]:
    """Each tree's own rollout beside its biased score."""
    return tuple(
        Recalibrated(one.tree, one.biased_mean_accepted, mean_accepted(trace, one.tree))
        for one in grown
    )


def mean_accepted(trace: RankTrace, tree: Tree) -> float:
    """Drafts a step of the tree's own run; the bonus token is not counted. 0 without a step."""
    accepted = accepted_at(trace, tree)
    starts = visited(trace, accepted)
    return float(accepted[starts].mean()) if len(starts) else 0.0


def acceptance_frontier(grown: Sequence[Grown]) -> tuple[Grown, ...]:
    """By ascending size, those that accept more than every smaller one, by the biased score."""
    kept: list[Grown] = []
    best = float("-inf")
    for one in sorted(grown, key=lambda one: (one.tree.num_nodes, -one.biased_mean_accepted)):
        if one.biased_mean_accepted > best + TOLERANCE:
            kept.append(one)
            best = one.biased_mean_accepted
    return tuple(kept)


def published_frontier(runs: Sequence[Sequence[Grown]]) -> tuple[Grown, ...]:
    """The union of the frontiers of the runs by depth, as the paper times them; each tree once."""
    kept: dict[Tree, Grown] = {}
    for run in runs:
        for one in acceptance_frontier(run):
            kept.setdefault(one.tree, one)
    return tuple(sorted(kept.values(), key=lambda one: (one.tree.num_nodes, one.tree.paths)))
