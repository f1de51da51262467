"""What `remedies.py` compares: policies of a bank, and remedies for `throughput`, each for a cause.

Knows: banks, traces, step times. Does not know: engines, figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kinds import times_at

from entmtp.calibrate.refit import Looks, refit
from entmtp.calibrate.trace import RankTrace
from entmtp.scheduler import (
    Adaptation,
    PlainPolicy,
    StaticPolicy,
    Times,
    TreeBank,
    TreePolicy,
    policy_from_bank,
)

STATIC, REMEDIED = "static", "throughput"
"""What is to be beaten, and what is remedied"""
STILL, EAGER = Adaptation(is_on=False), Adaptation(tree_prior=6.0)
"""The default's is told by `remedy_adaptation.py`, which sees calibration prompts only"""
RIVALS = ("ladder", "hysteresis", "per-step")
FEATURES = {
    "p0": (Looks("p0"), "p0 before drafting"),
    "entropy": (Looks("entropy"), "the root's entropy before drafting"),
    "accepted": (Looks("accepted"), "the running mean of accepted drafts before drafting"),
    "sum_tree": (
        Looks(None, "sum_tree"),
        "all drafted paths' probabilities in place of the greedy path's; drafts whole",
    ),
    "p0sum_tree": (Looks("p0", "p0sum_tree"), "the same times p0, and p0 before drafting"),
}
"""Scores other than the bank's own"""


@dataclass(frozen=True)
class Variant:
    """One way to choose trees."""

    name: str
    cause: str
    """That it is a remedy for"""
    words: str
    """What it does"""
    policies: Mapping[str, TreePolicy]
    """By kind of text"""


@dataclass(frozen=True)
class Given:
    """What variants are made of."""

    bank: TreeBank
    own: Mapping[str, TreeBank]
    """Of each kind of text, the bank that was made from this kind alone"""
    calibration: RankTrace
    evaluation: RankTrace
    times: Times
    """Measured in this run"""

    @property
    def bank_here(self) -> TreeBank:
        """The bank with the step times of this run."""
        return replace(self.bank, timing=replace(self.bank.timing, step_times=tuple(self.times)))


def make_variants(given: Given) -> tuple[Variant, ...]:
    """All of them, in the order in which they are shown; plain decoding and `STATIC` first."""
    return (
        *_of_the_bank(given),
        *_of_features(given),
        *_of_calibration(given),
        _of_time(given),
        *_of_cost(given),
    )


def _of_the_bank(given: Given) -> list[Variant]:
    bank = given.bank
    found = [
        _everywhere(given, "plain", "reference", "no drafts", PlainPolicy()),
        _everywhere(
            given, STATIC, "reference", "the best static tree", StaticPolicy(bank.best_static)
        ),
    ]
    for name in (REMEDIED, *RIVALS):
        policy = policy_from_bank(name, bank)
        found.append(_everywhere(given, name, "as shipped", "the bank's own", policy))
    return found


def _of_features(given: Given) -> list[Variant]:
    found = []
    words = "nothing before drafting, fitted by the same code as the next ones: a control"
    control = (Looks(None), words)
    for name, (looks, words) in {"refit": control, **FEATURES}.items():
        times = times_at(given.bank, given.calibration)
        bank = refit(given.bank, given.calibration, times, looks)
        found.append(_throughput(given, name, "features", words, bank))
    return found


def _of_calibration(given: Given) -> list[Variant]:
    still, eager = (policy_from_bank(REMEDIED, given.bank, way) for way in (STILL, EAGER))
    own = {kind: policy_from_bank(REMEDIED, bank) for kind, bank in given.own.items()}
    hindsight = refit(given.bank, given.evaluation, times_at(given.bank, given.evaluation))
    return [
        _everywhere(given, "no-adapt", "calibration", "adaptation off", still),
        _everywhere(
            given,
            "eager",
            "calibration",
            f"all trees' evidence counts for {EAGER.tree_prior:.0f} steps of a tree's own",
            eager,
        ),
        Variant("own-kind", "calibration", "the bank made from this kind of text alone", own),
        _throughput(
            given,
            "hindsight",
            "calibration",
            "tables fitted on these very answers: a bound, which nobody can have",
            hindsight,
        ),
    ]


def _of_time(given: Given) -> Variant:
    words = "step times of this run in place of the bank's"
    return _throughput(given, "own-times", "time model", words, given.bank_here)


def _of_cost(given: Given) -> list[Variant]:
    """What was shipped before looks and haste were found to cost more than they bring."""
    times = times_at(given.bank, given.calibration)
    seeing = refit(given.bank, given.calibration, times, Looks("p0"))
    policy = policy_from_bank(REMEDIED, seeing, EAGER)
    return [_everywhere(given, "p0-eager", "cost", "`p0` and `eager` together", policy)]


def _throughput(given: Given, name: str, cause: str, words: str, bank: TreeBank) -> Variant:
    return _everywhere(given, name, cause, words, policy_from_bank(REMEDIED, bank))


def _everywhere(given: Given, name: str, cause: str, words: str, policy: TreePolicy) -> Variant:
    return Variant(name, cause, words, dict.fromkeys(given.own, policy))
