"""The policies that need no bank: none, one tree, and a different tree each step (for tests).

Knows: trees. Does not know: models, tokens, time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from entmtp.scheduler.base import DraftSignals, Selection, Signals, TreePolicy
from entmtp.trees import ROOT, Tree


class StaticPolicy(TreePolicy):
    """One tree, always; if it is told so, another one for several sequences that step together."""

    name = "static"

    def __init__(self, tree: Tree, in_company: Sequence[Tree] = ()) -> None:
        """
        Args:
            in_company: for 2, 3, … sequences that step together; more take the last one's.
        """
        self._by_number = (tree, *in_company)
        self.trees = tuple(dict.fromkeys(self._by_number))

    @property
    def num_rows(self) -> frozenset[int]:
        """Runtimes make ready for one sequence alone."""
        return frozenset((self.trees[0].num_nodes,))

    def begin(self, seed: int) -> Selection:
        return _Static(self._by_number)


class PlainPolicy(StaticPolicy):
    """The root alone, always: plain decoding."""

    name = "plain"

    def __init__(self) -> None:
        super().__init__(ROOT)


class _Static(Selection):
    def __init__(self, by_number: tuple[Tree, ...]) -> None:
        self._by_number = by_number

    def widest(self, signals: Signals) -> Tree:
        trees = self._by_number
        return trees[min(signals.num_sequences, len(trees)) - 1]


class RandomPolicy(TreePolicy):
    """A tree drawn anew each step, and of it some levels and some branches.

    The hardest test of losslessness.
    """

    name = "random"

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.trees = tuple(trees)

    def begin(self, seed: int) -> Selection:
        return _Random(self.trees, seed)


class _Random(Selection):
    """Keyed by (seed, step), so that company changes nothing."""

    stops_draft = True

    def __init__(self, trees: tuple[Tree, ...], seed: int) -> None:
        self._trees = trees
        self._seed = seed

    def widest(self, signals: Signals) -> Tree:
        return self._draw(signals, "tree").choice(self._trees)

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        return self._draw(signals, draft.tree.depth).random() < 0.8

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        draw = self._draw(signals, "branches")
        if draw.random() < 0.5:
            return draft.tree
        kept: list[tuple[int, ...]] = [()]
        for path in draft.tree.paths[1:]:
            if path[:-1] in kept and draw.random() < 0.8:
                kept.append(path)
        return Tree(tuple(kept))

    def _draw(self, signals: Signals, what: object) -> random.Random:
        return random.Random(f"{self._seed}/{signals.num_steps}/{what}")
