"""What holds of every policy over a bank, and what none of them takes."""

from __future__ import annotations

import random
from time import perf_counter

import pytest

from bank_policies import (
    BANK,
    BANK_POLICIES,
    TIMES,
    decide,
    log_probs_of,
    signals_of,
    throughput,
)
from entmtp.errors import BadInput
from entmtp.scheduler import (
    HysteresisPolicy,
    LadderPolicy,
    PerStepPolicy,
    PublishedLadder,
    StepChoice,
    StepFunction,
    StepTimes,
    ThroughputPolicy,
    at_any_length,
)
from entmtp.trees import ROOT, chain


@pytest.mark.parametrize("name", BANK_POLICIES)
def test_only_announced_trees_near_the_end_too(name: str) -> None:
    policy = BANK_POLICIES[name]()
    draw = random.Random(3)
    selection = policy.begin(3)
    for step in range(60):
        left = step % 6
        choice = StepChoice(selection, signals_of(step, draw), left)
        assert choice.widest in {tree.truncate(left) for tree in policy.trees}
        tree = decide(choice, log_probs_of(choice.widest, draw))
        assert set(tree.paths) <= set(choice.widest.paths)


@pytest.mark.parametrize("name", BANK_POLICIES)
def test_a_decision_is_quick(name: str) -> None:
    """Loosely: this is to see a slip, not to measure (docs/scheduler.md has figures)."""
    policy = BANK_POLICIES[name]()
    draw = random.Random(6)
    selection = policy.begin(0)
    seconds = []
    for step in range(200):
        signals = signals_of(step, draw)
        started = perf_counter()
        choice = StepChoice(selection, signals, 9)
        spent = perf_counter() - started
        log_probs = log_probs_of(choice.widest, draw)
        started = perf_counter()
        choice.choose(log_probs)
        seconds.append(spent + perf_counter() - started)
    assert sorted(seconds)[len(seconds) // 2] < 5e-4


TREE_POLICY = at_any_length(TIMES)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LadderPolicy([], []), "ladder has no trees"),
        (lambda: LadderPolicy(BANK, [0.1]), "give one threshold less than trees"),
        (lambda: LadderPolicy(BANK, [0.5, 0.5]), "strictly ascending"),
        (lambda: LadderPolicy(BANK, [0.1, 0.2], "g_4"), "unknown score 'g_4'; known: accepted, p0"),
        (lambda: HysteresisPolicy(ROOT, chain(2), 0.1, 0.2), "tau_off must not be above"),
        (lambda: PublishedLadder(BANK, score="g4"), "known: best_path_value, base_top1_prob, g_1"),
        (lambda: PublishedLadder(BANK, period=0), "the period is 0"),
        (lambda: ThroughputPolicy(BANK, [], TREE_POLICY, 1.0), "stages of \\[\\] tables"),
        (lambda: ThroughputPolicy([ROOT], [], TREE_POLICY, 1.0), "give trees that draft"),
        (lambda: throughput(scores=("sum_g", "sum_g")), "'sum_g' is no score before drafting"),
        (lambda: throughput(StepTimes((1,), (1.0,), (0.0, 0.1), 0.0)), "know 1 draft levels"),
        (lambda: throughput(StepTimes((1,), (0.0,), (0.0,) * 5, 0.0)), "takes no time"),
        (lambda: PerStepPolicy(ROOT, [], [], TREE_POLICY, 1.0), "needs a tree that drafts"),
        (lambda: PerStepPolicy(chain(2), [], [], TREE_POLICY, 1.0), "acceptance has 0 entries"),
        (
            lambda: PerStepPolicy(chain(1), [StepFunction.constant(1.5)], [0.5], TREE_POLICY, 1.0),
            "are probabilities",
        ),
        (lambda: PerStepPolicy(chain(1), [StepFunction.constant(0.5)], [0.5], (), 1.0), "at least"),
        (lambda: StepFunction((1.0,), (1.0,)), "one level more than edges"),
        (lambda: StepFunction((2.0, 1.0), (1.0, 2.0, 3.0)), "must ascend strictly"),
        (lambda: StepFunction((1.0,), (2.0, 1.0)), "never fall"),
        (lambda: StepTimes((2, 4), (1.0, 2.0), (0.0,), 0.0), "rows ascending from 1"),
    ],
)
def test_what_cannot_work_is_refused(make, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput, match=said):
        make()
