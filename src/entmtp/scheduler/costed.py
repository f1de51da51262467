"""What the policies that count time have in common: what a step costs, and what became of it.

Knows: step times, outcomes of steps. Does not know: how a tree is chosen.

A step is worth `tokens - rate · seconds`: what it says less what its time would have brought
elsewhere. The tree that makes the most of this in every step makes the most tokens a second over
the whole, if the rate is the one that comes of it (METHOD §6.4.3). What has been spent on a draft
is spent when the tree is cut, so only what verification costs counts there.

Seconds are those that were calibrated for such a step, not the clock's: a factor common to all
times changes no choice, and the same text gives the same choices on a busy machine.

A step of another number of rows than the last one is a *switch* and costs that much more. It is
priced where sizes are compared, and is part of the time that the rate is made in. What drafting
brings over plain steps is learnt without it: that is about more than the next step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from entmtp.errors import BadInput
from entmtp.scheduler.adapting import Adaptation, Learnt, Probing, Rate
from entmtp.scheduler.base import Bid, DraftSignals, Estimate, Room, Selection, Signals, TreePolicy
from entmtp.scheduler.prices import Costs, is_switch
from entmtp.scheduler.times import Times
from entmtp.trees import ROOT, Tree, chain

LEAST = chain(1)
"""The smallest draft that tells whether heads are right: what a probe drafts, until one pays"""


class CostedPolicy(TreePolicy):
    """Keeps what its sequences share: costs, how to adapt, and what was learnt if they share it."""

    def __init__(
        self,
        trees: Sequence[Tree],
        times: Times,
        rate: float,
        adaptation: Adaptation,
        kinds: int,
        kind_prior: float,
        *,
        reads_root: bool = False,
    ) -> None:
        """
        Args:
            trees: all that may be drafted, beside the least; the last one holds all others.
            rate: tokens a second, as calibrated.
            kinds: of predictions that are corrected apart.
            kind_prior: steps of a kind's own evidence that all kinds together are worth.
            reads_root: whether the root's signals are read in each step.

        Raises:
            BadInput: times do not reach as deep as the trees, or the rate is not above 0.
        """
        if not trees:
            raise BadInput(f"policy {self.name} has no trees; give at least one")
        self.trees = (LEAST, *trees)
        self.costs = Costs(times, self.trees, reads_root=reads_root)
        self.adaptation = adaptation
        self._rate, self._kinds, self._kind_prior = rate, kinds, kind_prior
        self._depth = max(tree.depth for tree in self.trees)
        self._shared = self._new()

    def learnt(self) -> Learnt:
        """For one more sequence."""
        if self.adaptation.is_shared:
            return self._shared
        return self._new()

    def _new(self) -> Learnt:
        rate = Rate(self._rate, self.costs.plain_seconds, self._depth, self.adaptation)
        return Learnt(rate, self._kinds, self.adaptation, self._kind_prior)

    def reset(self) -> None:
        """Forget what sequences that share have learnt."""
        self._shared.clear()


class Costed(Selection):
    """One sequence's bookkeeping around a choice."""

    bids = True

    def __init__(self, policy: CostedPolicy) -> None:
        self._costs = policy.costs
        self._learnt = policy.learnt()
        self._probing = Probing(policy.adaptation)
        self._has_drafted = False
        self.is_probe = False
        """Whether this step drafts only to learn, and so has to verify some of it"""
        self.is_least = False
        """Whether it is a probe that drafts only `LEAST`"""
        self._at = self._costs.at[0]
        """At this step's length, for any number of sequences"""
        self.prices = self._at.of(1)
        """For as many sequences as took part in the last step"""
        self._depth = 0
        """Levels drafted in this step"""
        self._rows = 0
        """Of each sequence that this step was promised to verify"""
        self._last_rows = 0
        """Of this sequence in the last step, padding included; 0 before the first"""
        self.verify: Sequence[float] = ()
        """Seconds by rows of this sequence: of the whole step, if every one takes as many; a
        switch included, where it is one"""

    def learn(self, num_accepted: int) -> None:
        """Correct predictions by what the last step accepted of its drafts."""
        raise NotImplementedError

    def hear(self, signals: Signals) -> None:
        """Learn from the last step, and turn to this one."""
        company = signals.num_sequences
        rows = signals.num_rows // company or self._rows
        if signals.num_steps and self.estimate is not None:
            rate, prices = self._learnt.rate, self._at.of(company)
            plain, seconds = prices.step(1, 0), prices.step(rows, self._depth)
            if self._has_drafted:
                extra = seconds - plain
                surplus = signals.num_accepted - rate.value * extra
                self._learnt.surplus.hear(surplus)
                if signals.num_accepted:
                    self._probing.accept()
                if self.is_probe:
                    self._probing.hear(surplus, extra / plain)
                self.learn(signals.num_accepted)
            switch = prices.switch * is_switch(rows, self._last_rows)
            rate.hear(signals.num_accepted + 1, seconds + switch, plain)
        self._at = self._costs.at[self._costs.place(signals.num_context)]
        self.prices = self._at.of(company)
        self.verify = self.prices.behind(rows)
        self._last_rows = rows
        self._depth = 0
        self._has_drafted = False

    def is_worth_drafting(self, predicted: float) -> bool:
        """Whether this step should draft, by what that is predicted to bring over a plain step.

        One plain step in many drafts all the same, to learn: `LEAST` alone if `is_least`.
        """
        is_worth = self._learnt.surplus.expected(predicted) > 0
        self.is_probe = self._probing.is_due(is_plain=not is_worth)
        self.is_least = self.is_probe and not self._probing.has_paid
        self._has_drafted = is_worth or self.is_probe
        return self._has_drafted

    @property
    def is_resting(self) -> bool:
        """Whether nothing but a probe will draft for the rest of a long pause."""
        return self._probing.is_resting

    def spared(self) -> float:
        """Seconds of the switch that plain decoding would be; below 0, of the one that drafting is.

        A draft is taken to stay with the last step's number of rows, if that was one.
        """
        switch = self.prices.switch
        return -switch if self._last_rows == 1 else switch * is_switch(1, self._last_rows)

    def bid_for(self, gains: Sequence[float]) -> Bid:
        """A bid, by what 1, 2, … rows are expected to bring."""
        rate, switch = self._learnt.rate.value, self.prices.switch
        return Bid(gains, rate, self._at.verify, self._last_rows, switch)

    def bid_to_probe(self) -> Bid:
        """For `LEAST`: what it brings at best, else several that probe would all draft in vain."""
        return self.bid_for([0.0, 1.0])

    def choose_to_probe(self, draft: DraftSignals) -> Tree:
        """`LEAST`, if there is room for it. Nothing is promised of it."""
        room = draft.room
        has_room = room is None or room.num_slots >= LEAST.num_nodes
        tree = draft.tree if has_room else ROOT
        self._depth = draft.tree.depth
        self.promise(math.nan, 0.0, tree.num_nodes, room)
        return tree

    def promise(
        self, score: float, num_accepted: float, rows: int, room: Room | None = None
    ) -> None:
        """Put on record what this step is expected to bring.

        Args:
            rows: of this sequence's tree.
            room: what the batch gives each sequence, where it shares rows out.
        """
        prices, self._rows = self.prices, rows
        if room is not None:
            prices, self._rows = self._at.of(room.num_sequences), room.num_slots
        seconds = prices.step(self._rows, self._depth)
        seconds += prices.switch * is_switch(self._rows, self._last_rows)
        self.estimate = Estimate(score, num_accepted, seconds, self._learnt.rate.value)
