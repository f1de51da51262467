"""A policy that uses all that the protocol offers: signals, early stops, parts of a draft."""

from __future__ import annotations

import math
from collections.abc import Sequence

from entmtp.scheduler import DraftSignals, Selection, Signals, TreePolicy
from entmtp.trees import Tree


class ConfidentPolicy(TreePolicy):
    """The more predictable the text, the wider; deeper while the heads are sure; likely nodes."""

    name = "confident"

    def __init__(self, trees: Sequence[Tree], *, stop: float = 0.1, cut: float = 0.03) -> None:
        """
        Args:
            trees: small to large; the one for the root's probability is drafted.
            stop: drafting ends where the greedy path is less likely than that.
            cut: nodes whose path is less likely than that are left out.
        """
        self.trees = tuple(trees)
        self.stop = stop
        self.cut = cut

    def begin(self, seed: int) -> Selection:
        return ConfidentSelection(self)


class ConfidentSelection(Selection):
    reads_root = True
    reads_draft = True
    stops_draft = True

    def __init__(self, policy: ConfidentPolicy) -> None:
        self._policy = policy
        self.signals: list[Signals] = []
        self.drafts: list[DraftSignals] = []
        """Shown between levels"""
        self.cuts: list[tuple[DraftSignals, Tree]] = []
        """Whole drafts, and what was chosen of them"""

    def widest(self, signals: Signals) -> Tree:
        self.signals.append(signals)
        trees = self._policy.trees
        return trees[min(int(signals.root_probability * len(trees)), len(trees) - 1)]

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        self.drafts.append(draft)
        return math.prod(draft.confidences) >= self._policy.stop

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        values = {(): 0.0}
        for path, log_prob in zip(draft.tree.paths[1:], draft.log_probs[1:], strict=True):
            value = values.get(path[:-1], 0.0) + log_prob
            if math.exp(value) >= self._policy.cut and path[:-1] in values:
                values[path] = value
        tree = Tree(tuple(values))
        self.cuts.append((draft, tree))
        return tree
