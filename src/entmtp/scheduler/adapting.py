"""What follows the stream: the price of time, and how right the predictions have been.

Knows: promised and real outcomes of steps. Does not know: trees, models, clocks.

Calibration was done on other text, perhaps at another temperature. So predictions are corrected by
what became of them, and the price of time is the rate that is really made. Both start from what
was calibrated, which counts like a number of steps of evidence, and both are bounded. Old evidence
fades. All of it is a function of what the sequence said: the same text, the same choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from entmtp.errors import BadInput


@dataclass(frozen=True)
class Adaptation:
    """How fast predictions follow the stream, and how far."""

    is_on: bool = True
    memory: float = 100.0
    """Steps after which evidence counts for 1/e"""
    prior: float = 6.0
    """Steps of evidence that the calibration is worth"""
    tree_prior: float = 200.0
    """Steps of evidence for one tree of a bank that what all of them together say is worth: the
    more, the less each goes its own way"""
    depth_prior: float = 6.0
    """The same for one depth of a tree that is made for the step"""
    least_acceptance: float = 0.01
    """The smallest factor of acceptance"""
    most_acceptance: float = 8.0
    """The largest; no probability rises over 1 by it"""
    probe_every: int = 64
    """After at most so many plain steps on end, one drafts all the same: who never drafts learns
    nothing"""
    probe_share: float = 0.005
    """Of plain decoding's time, what probes may cost as calibrated. By the clock it may be more:
    calibrated is a step behind its like, and a probe stands alone among plain steps"""
    is_shared: bool = False
    """Sequences of one policy learn together, and later ones start from what earlier ones learnt.
    Choices then depend on company; what is said does not"""

    def __post_init__(self) -> None:
        priors = self.memory, self.prior, self.tree_prior, self.depth_prior
        if not (min(priors) > 0 and self.probe_every >= 1):
            raise BadInput(
                "adaptation needs memory and priors above 0, and probe_every of at least 1"
            )
        if not self.probe_share > 0:
            raise BadInput(
                f"probes may take {self.probe_share} of plain decoding's time; give a share above 0"
            )
        if not 0 < self.least_acceptance <= 1 <= self.most_acceptance:
            raise BadInput(
                f"acceptance may be multiplied by {self.least_acceptance} to"
                f" {self.most_acceptance}; give least_acceptance up to 1, most_acceptance from 1"
            )

    @property
    def keep(self) -> float:
        """What of the evidence is left after a step."""
        return 1.0 - 1.0 / max(self.memory, 1.0)


class Rate:
    """Tokens a second over the last steps: what a second is worth (Dinkelbach's lambda)."""

    def __init__(
        self, start: float, plain_seconds: float, depth: int, adaptation: Adaptation
    ) -> None:
        """
        Args:
            start: as calibrated.
            plain_seconds: of a plain step of one sequence alone.
            depth: drafts that a step may have accepted at the most.

        Raises:
            BadInput: the rate is not above 0.
        """
        if not 0 < start < float("inf"):
            raise BadInput(f"the rate is {start} tokens a second; give a number above 0")
        self._most_tokens = 1 + depth
        self._start = self._bounded(start, plain_seconds)
        self._adaptation = adaptation
        self._keep = adaptation.keep
        self.clear()

    def clear(self) -> None:
        """Back to what was calibrated."""
        self.value = self._start
        self._tokens = self._seconds = 0.0

    def hear(self, num_tokens: int, seconds: float, plain_seconds: float) -> None:
        """Take in a step.

        Args:
            num_tokens: that it said.
            seconds: that such a step takes.
            plain_seconds: that it would take if nobody drafted.
        """
        if not self._adaptation.is_on:
            return
        self._tokens = self._keep * self._tokens + num_tokens
        self._seconds = self._keep * self._seconds + seconds
        # Calibrated evidence: `prior` steps as long as this one at the calibrated rate.
        prior = self._adaptation.prior * seconds
        made = (prior * self._start + self._tokens) / (prior + self._seconds)
        self.value = self._bounded(made, plain_seconds)

    def _bounded(self, rate: float, plain_seconds: float) -> float:
        """No less than plain decoding, no more than if all drafts were accepted and free."""
        least, most = 1 / plain_seconds, self._most_tokens / plain_seconds
        return rate if least < rate < most else min(max(rate, least), most)


class Correction:
    """Factors by which predicted acceptance is multiplied, one for each of several kinds.

    A kind is a tree of a bank, or a depth. Every kind starts from the factor that all of them
    together would have, so that what one learns serves those that are rarely used.
    """

    def __init__(self, num_kinds: int, adaptation: Adaptation, kind_prior: float) -> None:
        """
        Args:
            kind_prior: steps of a kind's own evidence that all kinds together are worth.
        """
        self._is_on = adaptation.is_on
        self._bounds = adaptation.least_acceptance, adaptation.most_acceptance
        self._prior, self._kind_prior = adaptation.prior, kind_prior
        self._keep = adaptation.keep
        self._num_kinds = num_kinds
        self.clear()

    def clear(self) -> None:
        """Back to what was calibrated."""
        self.factors: Sequence[float] = [1.0] * self._num_kinds
        """Of each kind; another object whenever they may have changed"""
        self._promised = [0.0] * self._num_kinds
        self._real = [0.0] * self._num_kinds

    def hear(self, kinds: Sequence[int], promised: Sequence[float], real: Sequence[float]) -> None:
        """Take in a step: of some kinds, what was predicted uncorrected, and what came."""
        if not self._is_on:
            return
        keep, prior = self._keep, self._prior
        # In each step that drafted: loops take less time here than comprehensions.
        masses, hits = self._promised, self._real
        for kind, mass in enumerate(masses):
            masses[kind] = keep * mass
            hits[kind] *= keep
        for kind, mass, came in zip(kinds, promised, real, strict=True):
            masses[kind] += mass
            hits[kind] += came
        # Evidence is measured in predicted tokens: one of them is about a step.
        own = self._kind_prior
        common = own * (prior + sum(hits)) / (prior + sum(masses))
        least, most = self._bounds
        self.factors = factors = []
        for hit, mass in zip(hits, masses, strict=True):
            factor = (common + hit) / (own + mass)
            factors.append(factor if least < factor < most else min(max(factor, least), most))


FIRST_PAUSE = 4
"""Plain steps before the first probe"""
GROWTH = 2
"""Of the pause, with each probe in vain"""
BLIND_GROWTH = 4
"""The same while no draft was ever accepted: heads that know nothing, as far as one can tell"""
LOOKED_AT = 8
"""Plain steps of a pause that are asked all the same whether they are worth a draft"""


class Probing:
    """Says when a step that would be plain should draft, to learn whether that pays by now.

    Each probe that brought less than its time makes the pause before the next one longer by a
    factor, until probes take no more than their share of the time or the pause is the longest there
    may be. While they are in vain the least is drafted that tells anything. One that paid is
    followed by another at once, of a whole draft: whether the text has turned is then soon known.
    """

    def __init__(self, adaptation: Adaptation) -> None:
        self._adaptation = adaptation
        self._is_on = adaptation.is_on
        self._first = self._pause = min(FIRST_PAUSE, adaptation.probe_every)
        self._growth = BLIND_GROWTH
        self._num_plain = 0

    @property
    def has_paid(self) -> bool:
        """Whether the last probe has, so that the next may draft more than the least."""
        return self._pause == 0

    @property
    def is_resting(self) -> bool:
        """Whether the first steps of a long pause are over, and none of them was worth a draft.

        Then nothing but the next probe needs to be thought of.
        """
        return self._pause > LOOKED_AT and self._num_plain >= LOOKED_AT

    def is_due(self, *, is_plain: bool) -> bool:
        """Asked in every step."""
        self._num_plain = self._num_plain + 1 if is_plain else 0
        if not self._is_on or self._num_plain <= self._pause:
            return False
        self._num_plain = 0
        return True

    def accept(self) -> None:
        """Take in that a draft was accepted, of a probe or not."""
        self._growth = GROWTH

    def hear(self, surplus: float, price: float) -> None:
        """Take in a probe.

        Args:
            surplus: tokens that it brought over a plain step, the price of time paid.
            price: what it took longer, in plain steps.
        """
        if surplus > 0:
            self._pause = 0
            return
        most = min(self._adaptation.probe_every, price / self._adaptation.probe_share)
        self._pause = max(self._first, min(self._growth * self._pause, int(most)))


class Surplus:
    """What a step that drafts has brought over a plain one, in tokens, the price of time paid.

    Whatever the reason that predictions are wrong, this says whether drafting pays.
    """

    def __init__(self, adaptation: Adaptation) -> None:
        self._is_on = adaptation.is_on
        # Sooner forgotten than the rest: where it says no, only probes speak against it.
        self._keep = 1.0 - 1.0 / max(adaptation.memory / 3, 1.0)
        self._prior = adaptation.prior
        self.clear()

    def clear(self) -> None:
        """As if nothing had been drafted yet."""
        self._sum = self._weight = 0.0

    def hear(self, surplus: float) -> None:
        """Take in a step that drafted."""
        if self._is_on:
            self._sum = self._keep * self._sum + surplus
            self._weight = self._keep * self._weight + 1.0

    def expected(self, predicted: float) -> float:
        """What is predicted of this step, held against what became of the last ones."""
        return (self._prior * predicted + self._sum) / (self._prior + self._weight)


class Learnt:
    """What is learnt in one stream: of one sequence, or of all of a policy."""

    def __init__(
        self, rate: Rate, num_kinds: int, adaptation: Adaptation, kind_prior: float
    ) -> None:
        self.rate = rate
        self.correction = Correction(num_kinds, adaptation, kind_prior)
        self.surplus = Surplus(adaptation)

    def clear(self) -> None:
        """Back to what was calibrated."""
        self.rate.clear()
        self.correction.clear()
        self.surplus.clear()
