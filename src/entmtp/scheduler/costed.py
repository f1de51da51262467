"""What the policies that count time have in common: what a step costs, and what became of it.

Knows: step times, outcomes of steps. Does not know: how a tree is chosen.

A step is worth `tokens - rate · seconds`: what it says less what its time would have brought
elsewhere. The tree that makes the most of this in every step makes the most tokens a second over
the whole, if the rate is the one that comes of it (METHOD §6.4.3). What has been spent on a draft
is spent when the tree is cut, so only what verification costs counts there.

Seconds are those that were calibrated for such a step, not the clock's: a factor common to all
times changes no choice, and the same text gives the same choices on a busy machine.
"""

from __future__ import annotations

from collections.abc import Sequence

from entmtp.errors import BadInput
from entmtp.scheduler.adapting import Adaptation, Learnt
from entmtp.scheduler.base import Estimate, Selection, Signals, TreePolicy
from entmtp.scheduler.sharing import verify_time
from entmtp.scheduler.times import Costs, Times
from entmtp.trees import Tree


class CostedPolicy(TreePolicy):
    """Keeps what its sequences share: costs, how to adapt, and what was learnt if they share it."""

    def __init__(
        self, trees: Sequence[Tree], times: Times, rate: float, adaptation: Adaptation, kinds: int
    ) -> None:
        """
        Args:
            trees: all that may be drafted.
            rate: tokens a second, as calibrated.
            kinds: of predictions that are corrected apart.

        Raises:
            BadInput: times do not reach as deep as the trees, or the rate is not above 0.
        """
        if not trees:
            raise BadInput(f"policy {self.name} has no trees; give at least one")
        self.trees = tuple(trees)
        self.costs = Costs(times, self.trees)
        self.adaptation = adaptation
        self._rate, self._kinds = rate, kinds
        self._shared = Learnt(rate, kinds, adaptation)

    def learnt(self) -> Learnt:
        """For one more sequence."""
        if self.adaptation.is_shared:
            return self._shared
        return Learnt(self._rate, self._kinds, self.adaptation)

    def reset(self) -> None:
        """Forget what sequences that share have learnt."""
        self._shared.clear()


class Costed(Selection):
    """One sequence's bookkeeping around a choice."""

    bids = True

    def __init__(self, policy: CostedPolicy) -> None:
        self._costs = policy.costs
        self._learnt = policy.learnt()
        self._probe_every = policy.adaptation.probe_every if policy.adaptation.is_on else 0
        self._num_plain = 0
        self._has_drafted = False
        self._place = 0
        self._depth = 0
        """Levels drafted in this step"""
        self._kinds: Sequence[int] = ()
        self._promised: Sequence[float] = ()
        """Of the step under way, by kind, uncorrected"""

    def real(self, num_accepted: int) -> Sequence[float]:
        """What came of each of the kinds of the last step."""
        raise NotImplementedError

    def hear(self, signals: Signals) -> None:
        """Learn from the last step, and turn to this one."""
        if signals.num_steps and self.estimate is not None:
            rate, seconds = self._learnt.rate, self.estimate.seconds
            if self._has_drafted:
                extra = seconds - self._plain_seconds()
                self._learnt.surplus.hear(signals.num_accepted - rate.value * extra)
            rate.hear(signals.num_accepted + 1, seconds)
            if self._kinds:
                real = self.real(signals.num_accepted)
                self._learnt.correction.hear(self._kinds, self._promised, real)
        self._place = self._costs.place(signals.num_context)
        self._kinds = self._promised = ()
        self._depth = 0
        self._has_drafted = False

    def is_worth_drafting(self, predicted: float) -> bool:
        """Whether this step should draft, by what that is predicted to bring over a plain step.

        One plain step in many drafts all the same, to learn.
        """
        if self._learnt.surplus.expected(predicted) > 0:
            self._num_plain = 0
            self._has_drafted = True
            return True
        self._num_plain += 1
        self._has_drafted = self._num_plain % self._probe_every == 0 if self._probe_every else False
        return self._has_drafted

    def _plain_seconds(self) -> float:
        return self._costs.verify[self._place][1] + self._costs.host[self._place]

    def promise(self, score: float, num_accepted: float, rows: int) -> None:
        """Put on record what this step is expected to bring.

        Args:
            rows: of the whole step, all sequences' together.
        """
        place = self._place
        seconds = (
            verify_time(self._costs.verify[place], rows)
            + self._costs.draft[place][self._depth]
            + self._costs.host[place]
        )
        self.estimate = Estimate(score, num_accepted, seconds, self._learnt.rate.value)
