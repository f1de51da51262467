"""Who runs for a bank's recommendation, and who has won, from times of whole answers.

Knows: predictions, rehearsals, times that somebody measured. Does not know: engines, clocks, files.

Finalists are a few static trees that replay can hardly tell apart, and each policy that it does not
say to be surely slower than the best of them. First the static trees run alone, on a part of the
prompts, and one is chosen. What counts is the time of its steps there, and what it accepts
on all prompts, which a replay knows exactly. Of those that the fastest is not surely faster than,
the smallest is taken: thin evidence makes for small trees. Then that tree and the policies answer
all other prompts. So the tree's own time in the comparison is none that it was chosen by: of
several trees that are alike, the luckiest would look faster than it is (the winner's curse).

A policy answers only prompts that its bank was not fitted on. Static trees are of the bank of all
prompts; if that favours anyone, it favours them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.assemble import Candidates
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.rehearse import BASELINE, Rehearsed
from entmtp.calibrate.throughput import Evaluation
from entmtp.measure.statistics import geometric_mean_interval
from entmtp.scheduler import TreeBank
from entmtp.scheduler.bank import Finalist, Interval

MAX_STATICS = 4
"""Static trees that run"""
CLOSE = 0.03
"""Of the best one's tokens a second: step times are not right to less"""
MIN_TIMED = 2
"""Prompts below which nothing is said of how long steps take"""
MIN_ROUNDS = 4
"""Prompts below which nothing is said of how a policy compares"""


class Answered(NamedTuple):
    """One prompt answered by one finalist, behind its first token."""

    seconds: float
    num_tokens: int
    num_steps: int


Round = Mapping[str, Answered]
"""One prompt, answered by each finalist under its name."""


class Rounds(NamedTuple):
    """What was measured."""

    choosing: Sequence[Round]
    """Static trees alone"""
    comparing: Sequence[Round]
    """The chosen one and the policies, on other prompts"""


class Finalists(NamedTuple):
    """Who runs."""

    statics: tuple[int, ...]
    """Places of trees; the first is the best as predicted"""
    policies: tuple[str, ...]


def static_name(place: int) -> str:
    """What a static tree is called among the finalists."""
    return f"{BASELINE} {place}"


def find_finalists(candidates: Candidates, rehearsed: Sequence[Rehearsed]) -> Finalists:
    """The best static trees by replay, and the policies that are not surely slower."""
    policies = [
        one.replayed.name
        for one in rehearsed
        if one.replayed.name != BASELINE and not one.is_surely_slower
    ]
    return Finalists(_statics(candidates), tuple(policies))


def _statics(candidates: Candidates) -> tuple[int, ...]:
    """The best one, and the fastest ones of other sizes or depths that may be as fast.

    Those that it is not surely faster than, by the rows; and those that are so close that step
    times, which no interval here counts as doubtful, may have it wrong. The smallest of the former
    is always one: with few rows a small tree is not ruled out.
    """
    evaluation, best = candidates.evaluation, candidates.offer.chosen[-1]
    rates = [one.tokens_per_second for one in evaluation.predictions]
    kept = {_shape(candidates, best): best}
    for place in sorted(range(len(rates)), key=lambda place: -rates[place]):
        is_close = rates[place] > (1 - CLOSE) * rates[best]
        if is_close or not evaluation.is_surely_faster(best, place):
            kept.setdefault(_shape(candidates, place), place)
    places = tuple(kept.values())
    doubtful = [place for place in places if not evaluation.is_surely_faster(best, place)]
    smallest = min(doubtful, key=lambda place: _shape(candidates, place))
    first = places[:MAX_STATICS]
    return first if smallest in first else (*first[:-1], smallest)


def _shape(candidates: Candidates, place: int) -> tuple[int, int]:
    """Trees of one shape take the same time; which accepts more, replay knows."""
    tree = candidates.trees[place]
    return tree.num_nodes, tree.depth


def choose_static(statics: Sequence[int], evaluation: Evaluation, choosing: Sequence[Round]) -> int:
    """The place of the smallest static tree that the fastest one is not surely faster than.

    The first one where too little was measured to say.

    Args:
        evaluation: of all candidates: what they accept on all prompts, and how sure that is.
        choosing: prompts that all of them have answered.
    """
    usable = [round_ for round_ in choosing if all(one.num_steps for one in round_.values())]
    if len(usable) < MIN_TIMED:
        return statics[0]
    trees = [one.tree for one in evaluation.predictions]
    paces = {place: _paces(static_name(place), usable) for place in statics}
    lengths = {place: evaluation.predictions[place].mean_acceptance_length for place in statics}
    rates = {place: float(np.log(lengths[place]) - paces[place].mean()) for place in statics}
    best = max(statics, key=rates.__getitem__)

    def may_be_as_fast(place: int) -> bool:
        _, low, high = geometric_mean_interval(np.exp(paces[place] - paces[best]).tolist())
        accepted = evaluation.half_width(best, place)
        if low is None or high is None or accepted is None:
            return True
        # Two doubts of their own: how long steps take, and how much is accepted on other prompts.
        doubt = np.hypot(np.log(high / low) / 2, accepted)
        return bool(rates[best] - rates[place] <= doubt)

    alike = [place for place in statics if place == best or may_be_as_fast(place)]
    return min(alike, key=lambda place: (trees[place].num_nodes, trees[place].depth))


def _paces(name: str, rounds: Sequence[Round]) -> Floats:
    """Logarithm of the seconds of a step, of each prompt."""
    answers = [round_[name] for round_ in rounds]
    return np.log([one.seconds / one.num_steps for one in answers])


def conclude(
    finalists: Finalists,
    static: int,
    rounds: Rounds,
    promised: Mapping[str, float],
) -> tuple[Finalist, ...]:
    """The finalists with their ratios to the chosen static tree, which comes first.

    Nothing where it has too few prompts in common with the policies.

    Args:
        static: the place of the chosen tree.
        promised: tokens a second by replay of every finalist.
    """
    name = static_name(static)
    others = [place for place in finalists.statics if place != static]
    found = [_against(name, static_name(place), rounds.choosing) for place in others]
    rivals = [_against(name, policy, rounds.comparing) for policy in finalists.policies]
    num_prompts = len(rounds.comparing if finalists.policies else rounds.choosing)
    if num_prompts < MIN_ROUNDS:
        return ()
    whole = [
        Finalist(BASELINE, (static,), 1.0, Interval(1.0, 1.0, 1.0), num_prompts),
        *(
            Finalist(BASELINE, (place,), promised[static_name(place)] / promised[name], *one)
            for place, one in zip(others, found, strict=True)
            if one is not None
        ),
        *(
            Finalist(policy, (), promised[policy] / promised[name], *one)
            for policy, one in zip(finalists.policies, rivals, strict=True)
            if one is not None
        ),
    ]
    return tuple(whole)


def _against(base: str, name: str, rounds: Sequence[Round]) -> tuple[Interval, int] | None:
    """Ratio of tokens a second on the prompts that both answered; None of fewer than two."""
    ratios = [
        (_rate(round_[name]) / _rate(round_[base]))
        for round_ in rounds
        if round_[name].num_tokens and round_[base].num_tokens
    ]
    middle, low, high = geometric_mean_interval(ratios)
    if middle is None or low is None or high is None:
        return None
    return Interval(middle, low, high), len(ratios)


def _rate(answered: Answered) -> float:
    return answered.num_tokens / answered.seconds


def with_finalists(bank: TreeBank, candidates: Candidates, live: Sequence[Finalist]) -> TreeBank:
    """The bank with its finalists and what they decide.

    They may have chosen another static tree than replay: what choosers could win is then over it.
    """
    timing = replace(bank.timing, live=tuple(live), recommended=recommend(live))
    settled = replace(bank, timing=timing)
    if settled.best_static == bank.best_static:
        return settled
    bounds = {**timing.oracle_bounds, **candidates.bounds_over(settled.best_static)}
    return replace(settled, timing=replace(timing, oracle_bounds=bounds))


def recommend(live: Sequence[Finalist]) -> str:
    """The fastest policy whose interval over the best static tree lies above 1; else `static`."""
    sure = [one for one in live if one.policy != BASELINE and one.measured.low > 1.0]
    return max(sure, key=lambda one: one.measured.value).policy if sure else BASELINE
