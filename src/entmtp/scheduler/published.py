"""The paper's policies as its code has them, faults and all (METHOD §§1.4, 6.1), to compare with.

Knows: trees and scores. Does not know: models, tokens, time.

What differs from `banded`, and is a fault there:

* Confidences are those of the previous step's proposal, on its greedy path. Only p0 is fresh.
* A proposal goes no deeper than its tree, so behind a shallow one the deep g_d are missing: the
  score then falls back to p0, which is nearly always over the threshold.
* `best_path_value` is the largest of p0, g_1, g_2, …, that is p0: the others are products with it.
* State and proposal live on from one prompt to the next: they are the policy's, not a sequence's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from entmtp.errors import BadInput
from entmtp.scheduler.banded import NOT_A_NUMBER, check_taus, check_thresholds
from entmtp.scheduler.base import DraftSignals, Estimate, Selection, Signals, TreePolicy
from entmtp.scheduler.score import Reader, reader_of, score_by_name
from entmtp.trees import Tree

SCORES = ("best_path_value", "base_top1_prob", "g_1", "g_2", "g_3", "g_4")
"""The first is the published default, the last the one of the published experiment."""


class PublishedPolicy(TreePolicy):
    """Picks a tree by a stale score before anything is drafted."""

    def __init__(self, trees: Sequence[Tree], score: str, period: int) -> None:
        if not trees:
            raise BadInput(f"policy {self.name} has no trees; give at least one")
        if score not in SCORES:
            raise BadInput(f"unknown score {score!r}; known: {', '.join(SCORES)}")
        if period < 1:
            raise BadInput(f"the period is {period}; give a number of steps from 1 up")
        self.trees = tuple(trees)
        self.score = published_score(score)
        self.period = period
        self.chain: Sequence[float] = ()
        """Of the last proposal, whoever's it was"""
        self.band = 0

    def pick(self, score: float) -> int:
        """The place of the tree that a score stands for."""
        raise NotImplementedError

    def begin(self, seed: int) -> Selection:
        return _Published(self)


class PublishedLadder(PublishedPolicy):
    """`threshold_ladder`; without thresholds, spaced equally between 0 and 1."""

    name = "ladder-as-published"

    def __init__(
        self,
        trees: Sequence[Tree],
        thresholds: Sequence[float] | None = None,
        score: str = SCORES[0],
        period: int = 1,
    ) -> None:
        super().__init__(trees, score, period)
        count = len(self.trees)
        given = [i / count for i in range(1, count)] if thresholds is None else thresholds
        check_thresholds(given, count)
        self.thresholds = tuple(given)

    def pick(self, score: float) -> int:
        return bisect_right(self.thresholds, score)


class PublishedHysteresis(PublishedPolicy):
    """`binary_tau`: off at or under `tau_off`, on over `tau_on`."""

    name = "hysteresis-as-published"

    def __init__(
        self,
        small: Tree,
        big: Tree,
        tau_on: float,
        tau_off: float,
        score: str = SCORES[0],
        period: int = 1,
    ) -> None:
        super().__init__((small, big), score, period)
        check_taus(tau_on, tau_off)
        self.tau_on, self.tau_off = tau_on, tau_off

    def pick(self, score: float) -> int:
        return int(score > (self.tau_off if self.band else self.tau_on))


class _Published(Selection):
    reads_root = True
    reads_draft = True

    def __init__(self, policy: PublishedPolicy) -> None:
        self._policy = policy
        self._readers = {tree: _reader(tree) for tree in policy.trees}

    def widest(self, signals: Signals) -> Tree:
        policy = self._policy
        if signals.num_steps % policy.period == 0:
            score = policy.score(signals.root_probability, policy.chain)
            policy.band = policy.pick(score)
            self.estimate = Estimate(score, NOT_A_NUMBER, NOT_A_NUMBER, NOT_A_NUMBER)
        return policy.trees[policy.band]

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        read = self._readers.get(draft.tree) or _reader(draft.tree)
        self._policy.chain = read(draft.log_probs)
        return draft.tree


def published_score(name: str) -> Callable[[float, Sequence[float]], float]:
    """A score of p0 and the products c_1, c_1·c_2, … of the last proposal."""
    if name == "base_top1_prob":
        return lambda p0, chain: p0
    if name == "best_path_value":
        return lambda p0, chain: max(p0, *(p0 * value for value in chain), 0.0)
    depth = int(name.removeprefix("g_"))
    return lambda p0, chain: p0 * chain[depth - 1] if len(chain) >= depth else p0


def _reader(tree: Tree) -> Reader:
    return reader_of(score_by_name("sum_g", tree.num_best), tree)
