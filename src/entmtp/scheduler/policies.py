"""The policies that need no bank: none, one tree, and a different tree each step (for tests).

Knows: trees. Does not know: models, tokens, time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from entmtp.scheduler.base import Select, Signals
from entmtp.trees import ROOT, Tree


class PlainPolicy:
    """The root alone, always: plain decoding."""

    name = "plain"
    trees: tuple[Tree, ...] = (ROOT,)

    def begin(self, seed: int) -> Select:
        return lambda signals: ROOT


class StaticPolicy:
    """One tree, always."""

    name = "static"

    def __init__(self, tree: Tree) -> None:
        self.trees: tuple[Tree, ...] = (tree,)
        self._tree = tree

    def begin(self, seed: int) -> Select:
        return lambda signals: self._tree


class RandomPolicy:
    """A tree drawn anew each step: the hardest test of losslessness."""

    name = "random"

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.trees = tuple(trees)

    def begin(self, seed: int) -> Select:
        def select(signals: Signals) -> Tree:
            return random.Random(f"{seed}/{signals.num_steps}").choice(self.trees)

        return select
