"""The tree of a bank that makes the most of the step: expected tokens less the price of its time.

Knows: trees, step times, how accepted drafts depend on a score. Does not know: models, tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from entmtp.errors import BadInput
from entmtp.scheduler.acceptance import Columns, StepFunction
from entmtp.scheduler.adapting import Adaptation
from entmtp.scheduler.banded import union
from entmtp.scheduler.base import Bid, DraftSignals, Selection, Signals
from entmtp.scheduler.costed import LEAST, Costed, CostedPolicy
from entmtp.scheduler.score import (
    BEFORE_DRAFTING,
    History,
    Known,
    reader_of,
    score_of_draft,
)
from entmtp.scheduler.times import Times
from entmtp.trees import ROOT, Tree


class Stage(NamedTuple):
    """What drafts of each tree are expected to be accepted, as far as is known at some point."""

    score: str
    by_tree: tuple[StepFunction, ...]
    """Of each tree: drafts accepted, by the score"""


class ThroughputPolicy(CostedPolicy):
    """Maximises `E[accepted | score] - rate · t` over the trees of a bank and plain decoding."""

    name = "throughput"

    def __init__(
        self,
        trees: Sequence[Tree],
        stages: Sequence[Stage],
        times: Times,
        rate: float,
        *,
        adaptation: Adaptation | None = None,
    ) -> None:
        """
        Args:
            trees: the bank, ascending by size; the root alone is always among the choices.
            stages: what is known before drafting, after one level, after two, … The last one
                serves all deeper levels; where there are only two, drafts are never stopped.
            times: seconds of steps.
            rate: tokens a second, as calibrated.

        Raises:
            BadInput: lengths do not fit, or there is no such score.
        """
        bank = [tree for tree in trees if tree.depth]
        lengths = [len(stage.by_tree) for stage in stages]
        if not bank or len(stages) < 2 or set(lengths) != {len(trees)}:
            raise BadInput(
                f"throughput has {len(trees)} trees and stages of {lengths} tables; give trees"
                " that draft, and at least two stages of a table for each"
            )
        if stages[0].score not in BEFORE_DRAFTING:
            raise BadInput(
                f"{stages[0].score!r} is no score before drafting; known:"
                f" {', '.join(BEFORE_DRAFTING)}"
            )
        self.bank = tuple(bank)
        self.union = union((ROOT, *bank))
        self.scores = tuple(score_of_draft(stage.score, self.union) for stage in stages)
        self.reads_root = any(score.reads_root for score in self.scores)
        adaptation = adaptation or Adaptation()
        super().__init__(
            (*bank, self.union),
            times,
            rate,
            adaptation,
            len(bank),
            adaptation.tree_prior,
            reads_root=self.reads_root,
        )
        self.acceptance = tuple(
            Columns([table for table, tree in zip(stage.by_tree, trees, strict=True) if tree.depth])
            for stage in stages
        )

    @property
    def num_rows(self) -> frozenset[int]:
        return frozenset((1, LEAST.num_nodes, *(tree.num_nodes for tree in self.bank)))

    def begin(self, seed: int) -> Selection:
        return _Throughput(self)


class _Throughput(Costed):
    reads_draft = True

    def __init__(self, policy: ThroughputPolicy) -> None:
        super().__init__(policy)
        self._bank = policy.bank
        self._union = policy.union
        self._acceptance = policy.acceptance
        self._scores = policy.scores
        self._readers = [reader_of(score, policy.union) for score in policy.scores]
        self._history = History()
        self._sizes = [tree.num_nodes for tree in policy.bank]
        self._depths = [tree.depth for tree in policy.bank]
        self.reads_root = self._wants_root = policy.reads_root
        self.stops_draft = len(policy.acceptance) > 2
        self._taken: tuple[int, float] | None = None
        """Which tree of the bank, and the drafts that its table promised"""

    def learn(self, num_accepted: int) -> None:
        if self._taken is not None:
            place, promised = self._taken
            self._learnt.correction.hear((place,), (promised,), (float(num_accepted),))
        self._taken = None

    def widest(self, signals: Signals) -> Tree:
        if self._taken is not None:  # else nothing was there to be accepted
            self._history.hear(signals)
        self.hear(signals)
        score, best = math.nan, -math.inf
        if self.reads_root or not self._wants_root:  # else only a probe is asked for
            score = self._scores[0].of(Known(signals, self._history.accepted))
            best = self._worth(score)
        is_drafted = self.is_worth_drafting(best)
        self.reads_root = self._wants_root and (is_drafted or not self.is_resting)
        if is_drafted:
            return LEAST if self.is_least else self._union
        self.promise(score, 0.0, 1)
        return ROOT

    def _worth(self, score: float) -> float:
        """Of the best tree, over a plain step, by a score known before drafting."""
        gains = self._gains(0, score)
        verify, draft = self.verify, self.prices.draft
        rate = self._learnt.rate.value
        plain = verify[1]
        return max(
            [
                gain - rate * (verify[size] - plain + draft[depth])
                for gain, size, depth in zip(gains, self._sizes, self._depths, strict=True)
            ]
        )

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        depth = draft.tree.depth
        gains = self._gains(depth, self._score_of(signals, draft))
        verify, levels = self.verify, self.prices.draft
        rate = self._learnt.rate.value
        now, later = -rate * verify[1], float("-inf")
        for gain, size, reach in zip(gains, self._sizes, self._depths, strict=True):
            if reach <= depth:
                now = max(now, gain - rate * verify[size])
            else:
                later = max(later, gain - rate * (verify[size] + levels[reach] - levels[depth]))
        return later > now

    def bid(self, signals: Signals, draft: DraftSignals) -> Bid:
        if self.is_least:
            return self.bid_to_probe()
        gains = self._fitting(signals, draft)[1]
        by_rows = [0.0] * max(self._sizes)
        for gain, size in zip(gains, self._sizes, strict=True):
            by_rows[size - 1] = max(by_rows[size - 1], gain)
        return self.bid_for(list(accumulate(by_rows, max)))

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        if self.is_least:
            return self.choose_to_probe(draft)
        score, gains = self._fitting(signals, draft)
        rate, verify = self._learnt.rate.value, self.verify
        room = draft.room
        best, most = -1, -rate * verify[1] if room is None else 0.0
        if self.is_probe:
            most = float("-inf")
        for place, (gain, size) in enumerate(zip(gains, self._sizes, strict=True)):
            if room is None:
                value = gain - rate * verify[size]
            else:  # rows within the room are there anyway
                value = gain if size <= room.num_slots else float("-inf")
            if value > most:
                best, most = place, value
        self._depth = draft.tree.depth
        tree = ROOT if best < 0 else self._bank[best].truncate(self._depth)
        if best >= 0:
            self._taken = best, gains[best] / self._learnt.correction.factors[best]
        self.promise(score, gains[best] if best >= 0 else 0.0, tree.num_nodes, room)
        return tree

    def _fitting(self, signals: Signals, draft: DraftSignals) -> tuple[float, list[float]]:
        """Score and gains, less for trees that are deeper than the draft came."""
        depth = draft.tree.depth
        score = self._score_of(signals, draft)
        gains = self._gains(depth, score)
        for place, reach in enumerate(self._depths):
            if reach > depth:  # the deeper, the rarer: the first levels have at least their share
                gains[place] *= depth / reach
        return score, gains

    def _score_of(self, signals: Signals, draft: DraftSignals) -> float:
        stage = min(draft.tree.depth, len(self._scores) - 1)
        chain = self._readers[stage](draft.log_probs)
        return self._scores[stage].of(Known(signals, self._history.accepted, chain))

    def _gains(self, depth: int, score: float) -> list[float]:
        """Drafts of each tree expected to be accepted, by a score known after `depth` levels."""
        levels = self._acceptance[min(depth, len(self._acceptance) - 1)](score)
        factors = self._learnt.correction.factors
        return [
            gain if (gain := factor * level) < reach else float(reach)
            for factor, level, reach in zip(factors, levels, self._depths, strict=True)
        ]
