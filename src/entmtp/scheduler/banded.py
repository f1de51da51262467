"""The paper's policies over a bank, made fresh: a ladder of bands, and two trees with hysteresis.

Knows: trees and scores. Does not know: models, tokens, time.

What all trees of the bank have between them (their union) is drafted, the greedy path first, since
it is a part of it anyway. So the score is of this very step, and the tree is cut from the draft.
Levels that can no longer change the choice are not drafted (METHOD §6.5).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from entmtp.errors import BadInput
from entmtp.scheduler.base import DraftSignals, Estimate, Selection, Signals, TreePolicy
from entmtp.scheduler.score import History, Known, Score, reader_of, score_of_draft
from entmtp.trees import Tree

NOT_A_NUMBER = float("nan")


def union(trees: Sequence[Tree]) -> Tree:
    """All nodes that any of the trees has."""
    return Tree.from_paths({path for tree in trees for path in tree.paths})


class BandedPolicy(TreePolicy):
    """Maps a score to one of several trees, small to large."""

    def __init__(self, trees: Sequence[Tree], score: str) -> None:
        if not trees:
            raise BadInput(f"policy {self.name} has no trees; give at least one")
        self.bank = tuple(trees)
        self.union = union(trees)
        self.trees = (*self.bank, self.union)
        self.score = score_of_draft(score, self.union)

    @property
    def num_rows(self) -> frozenset[int]:
        return frozenset(tree.num_nodes for tree in self.bank)  # the union is not verified


class LadderPolicy(BandedPolicy):
    """EntMTP-l: as many bands of the score as trees; a score on a threshold is in the upper one."""

    name = "ladder"

    def __init__(
        self, trees: Sequence[Tree], thresholds: Sequence[float], score: str = "sum_g"
    ) -> None:
        """
        Raises:
            BadInput: there is no such score, or not one threshold less than trees, ascending.
        """
        super().__init__(trees, score)
        check_thresholds(thresholds, len(self.bank))
        self.thresholds = tuple(thresholds)

    def begin(self, seed: int) -> Selection:
        return _Ladder(self)


class HysteresisPolicy(BandedPolicy):
    """EntMTP-tau: a small tree until the score rises over `tau_on`, a big one until it falls.

    Every sequence starts with the small one.
    """

    name = "hysteresis"

    def __init__(
        self,
        small: Tree,
        big: Tree,
        tau_on: float,
        tau_off: float,
        score: str = "sum_g",
    ) -> None:
        """
        Raises:
            BadInput: there is no such score, or `tau_off` is above `tau_on`.
        """
        super().__init__((small, big), score)
        check_taus(tau_on, tau_off)
        self.tau_on, self.tau_off = tau_on, tau_off

    def begin(self, seed: int) -> Selection:
        return _Hysteresis(self)


def check_thresholds(thresholds: Sequence[float], num_trees: int) -> None:
    """Raises `BadInput` where they do not part as many bands as there are trees."""
    if len(thresholds) != num_trees - 1 or not all(a < b for a, b in pairwise(thresholds)):
        raise BadInput(
            f"{num_trees} trees and the thresholds {list(thresholds)}; give one threshold less"
            " than trees, strictly ascending"
        )


def check_taus(tau_on: float, tau_off: float) -> None:
    if not tau_off <= tau_on:
        raise BadInput(f"tau_off is {tau_off} and tau_on {tau_on}; tau_off must not be above it")


class _Banded(Selection):
    def __init__(self, policy: BandedPolicy) -> None:
        self._trees = policy.bank
        self._union = policy.union
        self._score: Score = policy.score
        self._read = reader_of(policy.score, policy.union)
        self._history = History()
        self.reads_root = policy.score.reads_root
        self.reads_draft = self.stops_draft = policy.score.depth > 0

    @abstractmethod
    def band(self, score: float) -> int:
        """Which tree a score stands for; never falling."""

    def settle(self, band: int) -> None:
        """Hear which one was taken."""

    def widest(self, signals: Signals) -> Tree:
        self._history.hear(signals)
        if self._score.depth:
            return self._union
        return self._trees[self._take(self._score.of(Known(signals, self._history.accepted)))]

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        known = self._known(signals, draft)
        highest = self.band(self._score.of(known))
        if highest != self.band(self._score.least(known)):
            return True
        return self._trees[highest].depth > draft.tree.depth

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        if not self._score.depth:
            return draft.tree
        band = self._take(self._score.of(self._known(signals, draft)))
        return self._trees[band].truncate(draft.tree.depth)

    def _take(self, score: float) -> int:
        band = self.band(score)
        self.settle(band)
        self.estimate = Estimate(score, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER)
        return band

    def _known(self, signals: Signals, draft: DraftSignals) -> Known:
        return Known(signals, self._history.accepted, self._read(draft.log_probs))


class _Ladder(_Banded):
    def __init__(self, policy: LadderPolicy) -> None:
        super().__init__(policy)
        self._thresholds = policy.thresholds

    def band(self, score: float) -> int:
        return bisect_right(self._thresholds, score)


class _Hysteresis(_Banded):
    def __init__(self, policy: HysteresisPolicy) -> None:
        super().__init__(policy)
        self._tau_on, self._tau_off = policy.tau_on, policy.tau_off
        self._is_big = False

    def band(self, score: float) -> int:
        return int(score > (self._tau_off if self._is_big else self._tau_on))

    def settle(self, band: int) -> None:
        self._is_big = bool(band)
