"""Ladder and hysteresis pick what their rule says, and draft no level that cannot matter."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from bank_policies import (
    BANK,
    decide,
    log_probs_of,
    signals_of,
)
from entmtp.scheduler import (
    DraftSignals,
    HysteresisPolicy,
    LadderPolicy,
    PublishedHysteresis,
    PublishedLadder,
    Selection,
    Signals,
    StepChoice,
    TreePolicy,
)
from entmtp.trees import Tree, chain, full, medusa_63

BANDED = [
    *(
        lambda score=score, thresholds=thresholds: LadderPolicy(BANK, thresholds, score)
        for score, thresholds in {
            "g1": (0.3, 0.7),
            "g3": (0.05, 0.4),
            "c2": (0.4, 0.8),
            "sum_g": (0.5, 1.5),
            "sum_tree": (0.8, 2.0),
            "p0g2": (0.1, 0.4),
            "p0sum_tree": (0.4, 1.2),
            "p0": (0.3, 0.6),
            "entropy": (-1.5, -0.5),
            "accepted": (0.8, 1.5),
        }.items()
    ),
    lambda: HysteresisPolicy(BANK[1], BANK[2], 0.4, 0.15, "g3"),
    lambda: HysteresisPolicy(BANK[0], BANK[2], 1.4, 0.7, "sum_g"),
]


@pytest.mark.parametrize("make", BANDED)
def test_levels_that_are_not_drafted_change_no_choice(make) -> None:  # type: ignore[no-untyped-def]
    draw = random.Random(5)
    short, long = make().begin(0), make().begin(0)
    picked, depths = set(), set()
    for step in range(300):
        signals = signals_of(step, draw)
        ours, whole = StepChoice(short, signals, 9), StepChoice(long, signals, 9)
        log_probs = log_probs_of(whole.widest, draw)
        tree = decide(ours, log_probs)
        assert tree == decide(whole, log_probs, whole=True)
        assert ours.estimate == whole.estimate or ours.estimate is not None
        assert ours.draft is not None
        picked.add(tree)
        depths.add(ours.draft.tree.depth)
    assert len(picked) > 1
    assert picked <= {*BANK, chain(1)}
    assert min(depths) < 4


def test_a_ladder_is_climbed_by_its_thresholds() -> None:
    policy = LadderPolicy(BANK, [0.25, 0.5], "g1")
    for value, place in ((0.1, 0), (0.2499, 0), (0.25, 1), (0.49, 1), (0.5, 2), (0.99, 2)):
        log_probs = [0.0, math.log(value), *[math.log(0.01)] * 30]
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        assert decide(choice, log_probs) == BANK[place]
        assert choice.estimate is not None
        assert choice.estimate.score == pytest.approx(value)


def test_hysteresis_starts_small_and_changes_at_its_own_thresholds() -> None:
    policy = HysteresisPolicy(BANK[0], BANK[2], 0.6, 0.3, "g1")
    selection = policy.begin(0)
    taken = []
    for value in (0.5, 0.6, 0.61, 0.5, 0.31, 0.3, 0.5, 0.9):
        log_probs = [0.0, math.log(value), *[math.log(0.01)] * 30]
        taken.append(BANK.index(decide(StepChoice(selection, Signals(0, 0), 9), log_probs)))
    assert taken == [0, 0, 2, 2, 2, 0, 0, 2]
    # The next sequence begins anew.
    log_probs = [0.0, math.log(0.5), *[math.log(0.01)] * 30]
    assert decide(StepChoice(policy.begin(1), Signals(0, 0), 9), log_probs) == BANK[0]


def published_steps(selection: Selection, steps: Sequence[tuple[float, float]]) -> list[Tree]:
    """Trees taken when p0 and the confidence of every head are these."""
    taken = []
    for step, (p0, confidence) in enumerate(steps):
        choice = StepChoice(selection, Signals(step, 0, p0, 1.0), 9)
        log_probs = [0.0, *[math.log(confidence)] * choice.widest.num_draft_tokens]
        taken.append(decide(choice, log_probs))
    return taken


def test_as_published_the_score_is_stale_and_falls_back() -> None:
    small, big = chain(2), chain(4)
    policy = PublishedHysteresis(small, big, 0.5, 0.5, "g_4")
    # Nothing was proposed yet: the score is p0, which is over tau, and the tree is big.
    # Then g_4 of the last proposal, 0.9·0.5^4, is under it. Then the small tree has no g_4: p0.
    steps = [(0.9, 0.5), (0.9, 1.0), (0.9, 1.0), (0.9, 0.1)]
    assert published_steps(policy.begin(0), steps) == [big, small, big, big]
    # The next prompt starts with the last one's proposal, and its state.
    assert published_steps(policy.begin(1), [(0.9, 1.0)]) == [small]
    # A fresh policy does nothing of this.
    fresh = HysteresisPolicy(small, big, 0.5, 0.5, "g4")
    taken = published_steps(fresh.begin(0), steps)
    assert taken == [small, big, big, small]
    assert published_steps(fresh.begin(1), [(0.9, 0.9)]) == [big]


def test_as_published_the_best_path_is_p0() -> None:
    policy = PublishedLadder(BANK)
    assert policy.thresholds == pytest.approx((1 / 3, 2 / 3))
    steps = [(0.2, 0.9), (0.5, 0.1), (0.9, 0.5), (0.66, 1.0)]
    expected = [BANK[0], BANK[1], BANK[2], BANK[1]]
    assert published_steps(policy.begin(0), steps) == expected
    assert (
        published_steps(PublishedLadder(BANK, score="base_top1_prob").begin(0), steps) == expected
    )
    seldom = PublishedLadder(BANK, period=2)
    assert published_steps(seldom.begin(0), steps) == [BANK[0], BANK[0], BANK[2], BANK[2]]


def test_a_policy_may_be_given_any_tree() -> None:
    """Banks are not nested, and may have gaps where siblings would be."""
    odd = (Tree.from_paths([(3,)]), Tree.from_paths([(0,), (1,), (1, 2), (1, 2, 0)]), medusa_63())
    policy: TreePolicy = LadderPolicy(odd, [0.5, 1.0], "sum_tree")
    selection = policy.begin(0)
    draw = random.Random(1)
    for step in range(50):
        choice = StepChoice(selection, Signals(step, 0), 9)
        assert decide(choice, log_probs_of(choice.widest, draw)) in odd
    draft = DraftSignals(full(2, 2))
    assert draft.room is None
