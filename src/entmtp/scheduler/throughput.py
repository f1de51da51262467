"""The tree of a bank that makes the most of the step: expected tokens less the price of its time.

Knows: trees, step times, how accepted drafts depend on a score. Does not know: models, tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from entmtp.errors import BadInput
from entmtp.scheduler.acceptance import StepFunction
from entmtp.scheduler.adapting import Adaptation
from entmtp.scheduler.banded import union
from entmtp.scheduler.base import Bid, DraftSignals, Selection, Signals
from entmtp.scheduler.costed import Costed, CostedPolicy
from entmtp.scheduler.score import (
    BEFORE_DRAFTING,
    History,
    Known,
    reader_of,
    score_of_draft,
)
from entmtp.scheduler.times import Times
from entmtp.trees import ROOT, Tree


class ThroughputPolicy(CostedPolicy):
    """Maximises `E[accepted | score] - rate · t` over the trees of a bank and plain decoding."""

    name = "throughput"

    def __init__(
        self,
        trees: Sequence[Tree],
        acceptance: Sequence[Sequence[StepFunction]],
        times: Times,
        rate: float,
        *,
        scores: tuple[str, str] = ("accepted", "chain-sum"),
        adaptation: Adaptation | None = None,
    ) -> None:
        """
        Args:
            trees: the bank, ascending by size; the root alone is always among the choices.
            acceptance: `acceptance[d][k]`: drafts of tree k expected to be accepted, by the score
                as it is known after d levels of the draft; the first row by the score before it.
                The last row serves all deeper levels; with two rows, drafts are never stopped.
            times: seconds of steps.
            rate: tokens a second, as calibrated.
            scores: the one before drafting, and the one of the draft.

        Raises:
            BadInput: lengths do not fit, or there is no such score.
        """
        bank = [tree for tree in trees if tree.depth]
        super().__init__(
            (*bank, union((ROOT, *bank))), times, rate, adaptation or Adaptation(), len(bank)
        )
        if not bank or len(acceptance) < 2 or any(len(row) != len(trees) for row in acceptance):
            raise BadInput(
                f"throughput has {len(trees)} trees and acceptance tables of"
                f" {[len(row) for row in acceptance]}; give trees that draft, and at least two rows"
                " of a table for each"
            )
        if scores[0] not in BEFORE_DRAFTING:
            raise BadInput(
                f"{scores[0]!r} is no score before drafting; known: {', '.join(BEFORE_DRAFTING)}"
            )
        self.bank = tuple(bank)
        self.union = self.trees[-1]
        self.acceptance = tuple(
            tuple(table for table, tree in zip(row, trees, strict=True) if tree.depth)
            for row in acceptance
        )
        self.first_score = score_of_draft(scores[0], self.union)
        self.score = score_of_draft(scores[1], self.union)

    @property
    def num_rows(self) -> frozenset[int]:
        return frozenset((1, *(tree.num_nodes for tree in self.bank)))

    def begin(self, seed: int) -> Selection:
        return _Throughput(self)


class _Throughput(Costed):
    reads_draft = True

    def __init__(self, policy: ThroughputPolicy) -> None:
        super().__init__(policy)
        self._bank = policy.bank
        self._union = policy.union
        self._acceptance = policy.acceptance
        self._first, self._score = policy.first_score, policy.score
        self._read = reader_of(policy.score, policy.union)
        self._history = History()
        self._sizes = [tree.num_nodes for tree in policy.bank]
        self._depths = [tree.depth for tree in policy.bank]
        self.reads_root = self._first.reads_root or self._score.reads_root
        self.stops_draft = len(policy.acceptance) > 2

    def real(self, num_accepted: int) -> Sequence[float]:
        return (float(num_accepted),)

    def widest(self, signals: Signals) -> Tree:
        self._history.hear(signals)
        self.hear(signals)
        score = self._first.of(Known(signals, self._history.accepted))
        gains = self._gains(0, score)
        verify, draft = self._costs.verify[self._place], self._costs.draft[self._place]
        rate = self._learnt.rate.value
        best = max(
            gain - rate * (verify[size] - verify[1] + draft[depth])
            for gain, size, depth in zip(gains, self._sizes, self._depths, strict=True)
        )
        if self.is_worth_drafting(best):
            return self._union
        self.promise(score, 0.0, 1)
        return ROOT

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        depth = draft.tree.depth
        gains = self._gains(depth, self._score_of(signals, draft))
        verify, levels = self._costs.verify[self._place], self._costs.draft[self._place]
        rate = self._learnt.rate.value
        now, later = -rate * verify[1], float("-inf")
        for gain, size, reach in zip(gains, self._sizes, self._depths, strict=True):
            if reach <= depth:
                now = max(now, gain - rate * verify[size])
            else:
                later = max(later, gain - rate * (verify[size] + levels[reach] - levels[depth]))
        return later > now

    def bid(self, signals: Signals, draft: DraftSignals) -> Bid:
        gains = self._fitting(signals, draft)[1]
        by_rows = [0.0] * max(self._sizes)
        for gain, size in zip(gains, self._sizes, strict=True):
            by_rows[size - 1] = max(by_rows[size - 1], gain)
        return Bid(
            list(accumulate(by_rows, max)),
            self._learnt.rate.value,
            self._costs.verify[self._place],
        )

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        score, gains = self._fitting(signals, draft)
        rate, verify = self._learnt.rate.value, self._costs.verify[self._place]
        room = draft.room
        best, most = -1, -rate * verify[1] if room is None else 0.0
        for place, (gain, size) in enumerate(zip(gains, self._sizes, strict=True)):
            if room is None:
                value = gain - rate * verify[size]
            else:  # rows within the room are there anyway
                value = gain if size <= room.num_slots else -1.0
            if value > most:
                best, most = place, value
        self._depth = draft.tree.depth
        tree = ROOT if best < 0 else self._bank[best].truncate(self._depth)
        rows = tree.num_nodes if room is None else room.num_sequences * room.num_slots
        if best >= 0:
            self._kinds = (best,)
            self._promised = (gains[best] / self._learnt.correction.factors[best],)
        self.promise(score, gains[best] if best >= 0 else 0.0, rows)
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
        chain = self._read(draft.log_probs)
        return self._score.of(Known(signals, self._history.accepted, chain))

    def _gains(self, depth: int, score: float) -> list[float]:
        """Drafts of each tree expected to be accepted, by a score known after `depth` levels."""
        row = self._acceptance[min(depth, len(self._acceptance) - 1)]
        return [
            min(factor * table(score), float(reach))
            for factor, table, reach in zip(
                self._learnt.correction.factors, row, self._depths, strict=True
            )
        ]
