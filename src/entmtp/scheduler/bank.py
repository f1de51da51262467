"""A bank of trees, as data: what calibration found for one model, its heads, and one machine.

Knows: trees, parameters of policies, step times, what it was made for. Does not know: files (see
`bank_file`), models, how anything was measured or fitted.

Two halves. What follows from the prompts alone (trees, accepted lengths, acceptance tables) is the
same byte for byte whenever it is made again with the same seed. What follows from the clock (step
times, tokens a second, which of the trees are worth having, thresholds) stands apart as `timing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from entmtp.errors import ArtefactError
from entmtp.scheduler.acceptance import StepFunction
from entmtp.scheduler.throughput import Stage
from entmtp.scheduler.times import AtContext, are_times
from entmtp.trees import Tree

RECOMMENDABLE = ("static", "ladder", "hysteresis", "throughput", "per-step")
"""Policies that a bank may recommend."""


class Interval(NamedTuple):
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class MadeFor:
    """What a bank is right for. Used for anything else, it would choose badly and say nothing."""

    target: str
    """Fingerprint of the target's weights"""
    heads: str
    """Fingerprint of the heads' weights"""
    runtime: str
    number_format: str
    machine: str
    """What computes: a processor's or an accelerator's name"""
    num_threads: int = 0
    """Of the processor; 0 where an accelerator computes, and in a bank of before, which does not
    say"""


@dataclass(frozen=True)
class MadeFrom:
    """What a bank was calibrated on."""

    prompts: str
    """Hash of the prompts"""
    num_prompts: int
    kinds: tuple[str, ...]
    """Workloads among them"""
    temperature: float
    seed: int


@dataclass(frozen=True)
class BankTree:
    """A tree that calibration thinks worth a look."""

    tree: Tree
    mean_acceptance_length: Interval
    """Tokens a step, bonus included, on the calibration prompts"""


@dataclass(frozen=True)
class Acceptance:
    """Calibrated tables, for the trees of the bank and for nodes of the wide tree."""

    stages: tuple[Stage, ...]
    """Of each tree, drafts accepted: before drafting, after one level, after two, …"""
    blind: Stage
    """The first of them for who looks at nothing before drafting. No tables in a bank of before"""
    by_depth: tuple[StepFunction, ...]
    """Of each depth: a node accepted, by its log-probability, given that its parent was"""
    reach: tuple[float, ...]
    """Of each depth: any node of the wide tree accepted, given that one above was"""


@dataclass(frozen=True)
class LadderParameters:
    """`ladder`: one threshold less than trees."""

    score: str
    trees: tuple[int, ...]
    """By their places in the bank, ascending"""
    thresholds: tuple[float, ...]


@dataclass(frozen=True)
class HysteresisParameters:
    """`hysteresis`: two trees by their place in the bank."""

    score: str
    small: int
    big: int
    tau_on: float
    tau_off: float


@dataclass(frozen=True)
class Finalist:
    """A policy, or a static tree, by the wall clock beside the best static tree."""

    policy: str
    trees: tuple[int, ...]
    """Of `static` the place of its tree; of other policies none"""
    promised: float
    """Tokens a second by replay, as a multiple of the best static tree's"""
    measured: Interval
    """The same live: geometric mean of the ratios of single prompts"""
    num_prompts: int
    """That both answered"""


@dataclass(frozen=True)
class Timing:
    """What depends on the clock, and so differs a little from run to run."""

    step_times: tuple[AtContext, ...]
    """Ascending by length of the committed text; of one sequence, and of more that step together"""
    tokens_per_second: tuple[Interval, ...]
    """Of each tree of the bank, by end-to-end timing or as predicted"""
    chosen: tuple[int, ...]
    """Places of the throughput-Pareto trees: ascending in size, rising in tokens a second"""
    offered: tuple[int, ...]
    """Places of the trees that `throughput` and `hysteresis` choose from: larger ones than the best
    static tree too, for where text is easy"""
    ladder: LadderParameters
    hysteresis: HysteresisParameters
    rates: Mapping[str, float]
    """Tokens a second expected of `throughput` and `per-step`: where the price of time starts"""
    sizes: tuple[int, ...]
    """Rows that `per-step` chooses from"""
    stops: bool
    """Whether it pays to be asked between levels of a draft"""
    recommended: str
    """The policy to use: the fastest of those that were surely faster live than the best static
    tree, on prompts that they were not fitted on, or else `static`"""
    live: tuple[Finalist, ...]
    """Who ran for it: the best static tree first. Empty where nothing was run live"""
    oracle_bounds: Mapping[str, float]
    """Tokens a second of choosers that know the future, and of the best static tree"""
    looks_at_root: bool
    """Whether `throughput` does so before drafting; else its first stage is `acceptance.blind`"""
    best_in_company: tuple[int, ...]
    """Places of the trees of most tokens a second, as predicted, for 2, 3, … sequences that step
    together, up to the largest number that was timed. Empty where that is one, and in a bank of
    before"""


def _is_interval(one: Interval) -> bool:
    return 0 <= one.low <= one.value <= one.high


def _are_figures(bank: TreeBank) -> bool:
    """Whether counts, rates and times are such as can be: none below 0, in their intervals."""
    timing, origin = bank.timing, bank.made_from
    intervals = (
        *(entry.mean_acceptance_length for entry in bank.trees),
        *timing.tokens_per_second,
        *(one.measured for one in timing.live),
    )
    least = min(
        origin.num_prompts,
        origin.temperature,
        bank.made_for.num_threads,
        timing.step_times[0].num_tokens,
        *timing.rates.values(),
        *timing.oracle_bounds.values(),
        *(min(one.promised, one.num_prompts) for one in timing.live),
    )
    return (
        all(map(_is_interval, intervals))
        and least >= 0
        and min(timing.sizes, default=1) >= 1
        and all(0 <= chance <= 1 for chance in bank.acceptance.reach)
    )


def _are_places(places: Sequence[int], num_trees: int) -> bool:
    """Whether they are places of trees, strictly ascending, and at least one."""
    ascend = list(places) == sorted(set(places))
    return bool(places) and ascend and places[0] >= 0 and places[-1] < num_trees


def _are_finalists(live: Sequence[Finalist], num_trees: int) -> bool:
    """Whether each is a static tree or a policy, the first a static tree; or there are none."""
    for one in live:
        is_static = one.policy == "static"
        if one.policy not in RECOMMENDABLE or len(one.trees) != int(is_static):
            return False
        if not all(0 <= place < num_trees for place in one.trees):
            return False
    return not live or live[0].policy == "static"


@dataclass(frozen=True)
class TreeBank:
    """All that policies need to run on one model and machine."""

    made_for: MadeFor
    made_from: MadeFrom
    trees: tuple[BankTree, ...]
    """Candidates, by size; several may be of one size. Which are used, `timing` says"""
    wide_tree: Tree
    """What `per-step` takes its nodes from"""
    acceptance: Acceptance
    timing: Timing

    def __post_init__(self) -> None:
        sizes = [entry.tree.num_nodes for entry in self.trees]
        timing, num_trees = self.timing, len(self.trees)
        for what, is_right in (
            ("trees ascending in size", num_trees > 0 and sizes == sorted(sizes)),
            ("trees that differ", len({entry.tree for entry in self.trees}) == num_trees),
            (
                "tokens_per_second for each tree",
                len(timing.tokens_per_second) == num_trees,
            ),
            (
                "chosen places of trees, ascending",
                _are_places(timing.chosen, num_trees),
            ),
            ("a ladder's places of trees, ascending", _are_places(timing.ladder.trees, num_trees)),
            ("offered places of trees, ascending", _are_places(timing.offered, num_trees)),
            (
                "places of trees in company",
                all(0 <= place < num_trees for place in timing.best_in_company),
            ),
            ("finalists, a static tree first", _are_finalists(timing.live, num_trees)),
            (
                "a recommended policy, of the finalists if there are any",
                timing.recommended in ([one.policy for one in timing.live] or RECOMMENDABLE),
            ),
            (
                "small and big places of trees",
                0 <= timing.hysteresis.small < num_trees and 0 <= timing.hysteresis.big < num_trees,
            ),
            (
                "acceptance stages with a table for each tree",
                all(len(stage.by_tree) == num_trees for stage in self.stages),
            ),
            (
                "step times that ascend by context, and at each by the same batch sizes from 2 up",
                are_times(timing.step_times),
            ),
        ):
            if not is_right:
                raise ArtefactError(f"a bank needs {what}")
        if not _are_figures(self):
            raise ArtefactError("a bank needs figures from 0 up, each inside its interval")

    @property
    def bank(self) -> tuple[Tree, ...]:
        """The paper's B: the chosen trees."""
        return tuple(self.trees[place].tree for place in self.timing.chosen)

    @property
    def offer(self) -> tuple[Tree, ...]:
        """What a policy that knows the price of time chooses from."""
        return tuple(self.trees[place].tree for place in self.timing.offered)

    @property
    def best_static(self) -> Tree:
        """EntMTP*: the tree of most tokens a second, live if that was tried.

        Else the last of those chosen, as predicted.
        """
        live = self.timing.live
        return self.trees[live[0].trees[0]].tree if live else self.bank[-1]

    @property
    def stages(self) -> tuple[Stage, ...]:
        """What `throughput` expects: before drafting, after one level, after two, …"""
        first, *behind = self.acceptance.stages
        return (first if self.timing.looks_at_root else self.acceptance.blind, *behind)

    @property
    def static_trees(self) -> tuple[Tree, ...]:
        """The best static tree of 1, 2, 3, … sequences that step together; more take the last.

        Only that of one sequence may have been tried live.
        """
        in_company = (self.trees[place].tree for place in self.timing.best_in_company)
        return (self.best_static, *in_company)

    def check_made_for(self, made_for: MadeFor, where: str = "the bank") -> None:
        """Refuse to serve what the bank was not made for.

        Raises:
            ArtefactError: something differs; it is named.
        """
        if differences := self.differences(made_for):
            raise ArtefactError(
                f"{where} was made for {'; '.join(differences)}; make one with `entmtp calibrate`"
            )

    def differences(self, made_for: MadeFor) -> tuple[str, ...]:
        """What the bank was made for and this is not, each as `heads 1f…, not 2e…`.

        A bank that does not say for how many threads is for any.
        """
        names = [field.name for field in fields(MadeFor)]
        if not self.made_for.num_threads:
            names.remove("num_threads")
        pairs = [(getattr(self.made_for, name), getattr(made_for, name)) for name in names]
        return tuple(
            f"{name.replace('_', ' ')} {ours}, not {theirs}"
            for name, (ours, theirs) in zip(names, pairs, strict=True)
            if ours != theirs
        )
