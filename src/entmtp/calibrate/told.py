"""A policy that does as it is told, step by step: for timing.

Knows: trees. Does not know: clocks, why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from entmtp.scheduler import Selection, Signals, TreePolicy
from entmtp.scheduler.base import DraftSignals
from entmtp.trees import ROOT, Tree

Way = Literal["nothing", "root", "draft"]
"""What a step looks at."""
WAYS: tuple[Way, ...] = ("nothing", "root", "draft")


class TakingTurns(TreePolicy):
    """Whatever tree it is told to use next, looked at as it is told."""

    name = "taking turns"

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.trees = tuple(trees)
        self.next = ROOT
        """Verified in the next step"""
        self.way: Way = "nothing"
        self.drafted = ROOT
        """By steps that look at the draft, and cut `next` out of it"""

    def begin(self, seed: int) -> Selection:
        return _Told(self)


class _Told(Selection):
    def __init__(self, policy: TakingTurns) -> None:
        self._policy = policy

    def widest(self, signals: Signals) -> Tree:
        way = self._policy.way
        self.reads_root, self.reads_draft = way == "root", way == "draft"
        return self._policy.drafted if self.reads_draft else self._policy.next

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        return self._policy.next.truncate(draft.tree.depth) if self.reads_draft else draft.tree
