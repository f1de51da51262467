"""Policies that count time follow the stream: a bad start, a foreign bank, heads that never help.

A stream is played without a model: heads say how sure they are of each node, and of the greedy path
a draft is accepted as often as is true of this stream. Seconds are those of the step times.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest

from bank_policies import BANK, TIMES, WIDE, per_step, throughput
from entmtp.errors import BadInput
from entmtp.scheduler import (
    Adaptation,
    PerStepPolicy,
    Selection,
    Signals,
    Stage,
    StepChoice,
    StepFunction,
    StepTimes,
    ThroughputPolicy,
    TreePolicy,
    at_any_length,
)
from entmtp.scheduler.adapting import Correction, Probing, Rate, Surplus
from entmtp.scheduler.costed import LEAST
from entmtp.trees import Part, Tree

PLAIN_RATE = 1 / TIMES.step(1, 0)


class Step(NamedTuple):
    """What a played step came to."""

    num_tokens: int
    seconds: float
    num_nodes: int
    depth: int
    reads_root: bool


def play(
    selection: Selection,
    num_steps: int,
    truth: Callable[[float], float],
    says: Sequence[float] = (0.2, 0.6, 0.95),
    seed: int = 0,
    times: StepTimes = TIMES,
) -> list[Step]:
    """Steps of a stream in which heads say one of `says` of each best child."""
    draw = random.Random(seed)
    steps = []
    signals = Signals(0, 0, 0.5, 1.0, 10)
    for step in range(num_steps):
        said = draw.choice(says)
        hits = [draw.random() < truth(said) for _ in range(WIDE.depth)]
        choice = StepChoice(selection, signals, 9)
        log_probs = [
            0.0,
            *(math.log(said if not path[-1] else 0.03) for path in choice.widest.paths[1:]),
        ]
        levels = choice.widest.depth
        for depth in range(1, levels):
            if not choice.goes_on(depth, log_probs):
                levels = depth
                break
        part = choice.choose(log_probs)
        accepted = accepted_of(part, hits)
        seconds = times.step(part.num_nodes, levels)
        steps.append(Step(accepted + 1, seconds, part.num_nodes, levels, choice.reads_root))
        root = (0.5, 1.0) if choice.reads_root else (math.nan, math.nan)
        signals = Signals(step + 1, accepted, *root, 10 + 2 * step)
    return steps


def accepted_of(part: Tree | Part, hits: Sequence[bool]) -> int:
    paths = set((part.tree if isinstance(part, Part) else part).paths)
    accepted = 0
    while accepted < len(hits) and hits[accepted] and (0,) * (accepted + 1) in paths:
        accepted += 1
    return accepted


def rate_of(steps: Sequence[Step]) -> float:
    return sum(step.num_tokens for step in steps) / sum(step.seconds for step in steps)


def honest(said: float) -> float:
    return said


def honest_from(turn: int) -> Callable[[float], float]:
    """Of no use for so many steps, honest from then on."""
    turns = iter([0.0] * turn * WIDE.depth)
    return lambda said: next(turns, said)


def foreign_throughput(
    factor: float,
    rate: float,
    times: StepTimes = TIMES,
    scores: Sequence[str] = ("accepted", "sum_g"),
    **adaptation: object,
) -> TreePolicy:
    """With tables of drafts `factor` times as many as there are, and another rate."""
    stages = [
        Stage(
            score,
            tuple(
                StepFunction(
                    (0.5, 1.0, 2.0),
                    tuple(min(factor * x * tree.depth, tree.depth) for x in (0.2, 0.3, 0.4, 0.8)),
                )
                for tree in BANK
            ),
        )
        for score in scores
    ]
    return ThroughputPolicy(
        BANK,
        stages,
        at_any_length(times),
        rate,
        adaptation=Adaptation(**adaptation),  # type: ignore[arg-type]
    )


def foreign_per_step(
    factor: float, rate: float, times: StepTimes = TIMES, **adaptation: object
) -> TreePolicy:
    edges = tuple(math.log(x) for x in (0.1, 0.4, 0.9))
    levels = tuple(min(factor * x, 1.0) for x in (0.03, 0.2, 0.6, 0.95))
    return PerStepPolicy(
        WIDE,
        [StepFunction(edges, levels)] * WIDE.depth,
        [min(factor * x, 1.0) for x in (0.7, 0.65, 0.6, 0.55)],
        at_any_length(times),
        rate,
        sizes=(1, 3, 6, 12, 25),
        adaptation=Adaptation(**adaptation),  # type: ignore[arg-type]
    )


FOREIGN = [foreign_throughput, foreign_per_step]
DEAR = StepTimes((1, 2, 4, 64), (1.0, 1.3, 1.6, 9.0), (0.0, 0.5, 0.7, 0.9, 1.1), 0.05)
"""Of heads and rows so dear that the smallest draft takes nearly as long as a plain step."""


@pytest.mark.parametrize("times", [TIMES, DEAR])
@pytest.mark.parametrize("factor", [0.2, 1.0, 4.0])
@pytest.mark.parametrize("make", FOREIGN)
def test_heads_that_never_help_cost_nearly_nothing(
    make: Callable[..., TreePolicy], factor: float, times: StepTimes
) -> None:
    """Sure of themselves and always wrong: after a few steps, plain decoding with rare probes."""
    steps = play(make(factor, 2.0, times).begin(0), 1000, lambda said: 0.0, times=times)
    behind = _behind(steps, 64)
    assert rate_of(behind) * times.step(1, 0) > 0.97
    probes = [step for step in behind if step.num_nodes > 1]
    assert 0.01 < len(probes) / len(behind) < 0.05
    assert {step.num_nodes for step in probes[3:]} == {LEAST.num_nodes}


def test_the_root_is_not_looked_at_while_probes_are_in_vain() -> None:
    def make(**adaptation: object) -> TreePolicy:
        return foreign_throughput(1.0, 2.0, scores=("p0", "sum_g"), **adaptation)

    steps = play(make().begin(0), 700, honest_from(300))
    has_looked = [step.reads_root for step in steps]
    assert all(has_looked[:6])
    assert sum(has_looked[100:300]) < 110
    assert not any(step.num_nodes > LEAST.num_nodes for step in steps[100:300])
    assert all(has_looked[450:])
    assert rate_of(steps[450:]) > 1.15 * PLAIN_RATE
    never_learns = play(make(is_on=False).begin(0), 99, honest_from(99))
    assert all(step.reads_root for step in never_learns), "who does not learn cannot know"
    assert not any(step.reads_root for step in play(throughput().begin(0), 99, honest))


def test_per_step_without_a_size_that_drafts_learns_by_the_least() -> None:
    """A bank of heads that know nothing has the root alone; no draft is then taken whole."""
    policy = PerStepPolicy(
        WIDE,
        [StepFunction.constant(0.1)] * WIDE.depth,
        [0.1] * WIDE.depth,
        at_any_length(TIMES),
        PLAIN_RATE,
        sizes=(1,),
    )
    assert policy.num_rows == {1, LEAST.num_nodes}
    steps = play(policy.begin(0), 400, lambda said: 0.0)
    assert {step.num_nodes for step in steps} == {1, LEAST.num_nodes}
    assert rate_of(_behind(steps, 64)) > 0.97 * PLAIN_RATE
    steps = play(policy.begin(0), 400, lambda said: 0.9)
    assert rate_of(steps[100:]) > 1.3 * PLAIN_RATE


def test_without_adaptation_such_heads_are_paid_for_in_every_step() -> None:
    """Of `per-step`; the first score of `throughput` says by itself that nothing is accepted."""
    fixed = play(foreign_per_step(1.0, 2.0, is_on=False).begin(0), 200, lambda said: 0.0)
    assert rate_of(fixed) < 0.9 * PLAIN_RATE


def _behind(steps: Sequence[Step], num_tokens: int) -> Sequence[Step]:
    """The steps behind the first so many tokens."""
    said = 0
    for place, step in enumerate(steps):
        said += step.num_tokens
        if said >= num_tokens:
            return steps[place + 1 :]
    raise AssertionError("the stream is shorter")


@pytest.mark.parametrize("make", FOREIGN)
@pytest.mark.parametrize(("factor", "rate"), [(4.0, 2.0), (0.2, 2.0), (1.0, 0.3), (1.0, 12.0)])
def test_a_foreign_bank_is_as_good_as_the_right_one_soon(
    make: Callable[..., TreePolicy], factor: float, rate: float
) -> None:
    right = rate_of(play(make(1.0, 2.0).begin(0), 1000, honest)[100:])
    foreign = rate_of(play(make(factor, rate).begin(0), 1000, honest)[100:])
    assert right > 1.2 * PLAIN_RATE
    assert foreign > 0.9 * right  # four times too sure, it cannot tell the sure from the surest
    assert foreign > PLAIN_RATE


@pytest.mark.parametrize("make", FOREIGN)
def test_a_stream_that_changes_is_followed(make: Callable[..., TreePolicy]) -> None:
    """Heads that were useless become good: it drafts again, without being told, and soon."""
    waits = []
    for turn in range(300, 364, 4):  # wherever in a pause
        truth = honest_from(turn)
        steps = play(make(1.0, 2.0).begin(0), turn + 400, truth, seed=turn)
        has_drafted = [step.num_nodes > 1 for step in steps]
        assert sum(has_drafted[turn - 100 : turn]) < 6
        waits.append(next(k for k in range(400) if sum(has_drafted[turn + k :][:20]) >= 15))
        assert rate_of(steps[turn + 200 :]) > 1.15 * PLAIN_RATE
    assert sorted(waits)[len(waits) // 2] < 60
    assert max(waits) < 150


@pytest.mark.parametrize("make", [throughput, per_step])
def test_each_sequence_learns_for_itself_unless_shared(make: Callable[..., TreePolicy]) -> None:
    policy = make()
    alone = play(policy.begin(0), 40, honest)
    play(policy.begin(1), 200, lambda said: 0.0)
    assert play(policy.begin(2), 40, honest) == alone
    shared = make(adaptation=Adaptation(is_shared=True))
    assert play(shared.begin(0), 40, honest) == alone
    play(shared.begin(1), 200, lambda said: 0.0)
    assert play(shared.begin(2), 40, honest) != alone
    assert isinstance(shared, (ThroughputPolicy, PerStepPolicy))
    shared.reset()
    assert play(shared.begin(3), 40, honest) == alone


def test_the_rate_follows_within_bounds() -> None:
    rate = Rate(10.0, 0.25, 4, Adaptation(memory=50, prior=5))
    for _ in range(200):
        rate.hear(2, 0.1, 0.1)
    assert rate.value == pytest.approx(20.0, rel=0.05)
    for _ in range(500):
        rate.hear(1, 100.0, 0.25)
    assert rate.value == 4.0
    rate.clear()
    assert rate.value == 10.0
    still = Rate(10.0, 0.25, 4, Adaptation(is_on=False))
    still.hear(1, 5.0, 0.25)
    assert still.value == 10.0
    with pytest.raises(BadInput, match="the rate is 0 tokens a second; give a number above 0"):
        Rate(0, 0.25, 4, Adaptation())
    assert Rate(500.0, 0.25, 4, Adaptation()).value == 20.0


def test_what_is_corrected_is_bounded_and_shared_with_kinds_that_are_rare() -> None:
    correction = Correction(3, Adaptation(), 6.0)
    for _ in range(300):
        correction.hear((0,), (2.0,), (1.0,))
    first, second, third = correction.factors
    assert first == pytest.approx(0.5, rel=0.1)
    assert second == third
    assert first <= second < 0.6  # never seen, but the heads are the same
    for _ in range(600):
        correction.hear((0, 1), (2.0, 1.0), (0.0, 20.0))
    assert correction.factors[0] < 0.25
    assert correction.factors[1] == Adaptation().most_acceptance
    correction.clear()
    assert correction.factors == [1.0, 1.0, 1.0]


def test_kinds_go_their_own_way_only_on_evidence_but_together_they_turn_at_once() -> None:
    usual, steady = (Correction(2, Adaptation(), prior) for prior in (6.0, 200.0))
    for correction in (usual, steady):
        for _ in range(60):
            correction.hear((0,), (1.0,), (0.5,))
            correction.hear((1,), (1.0,), (1.5,))
    assert usual.factors[1] - usual.factors[0] > 0.5
    assert 0 < steady.factors[1] - steady.factors[0] < 0.3
    for correction in (usual, steady):
        correction.clear()
        for _ in range(30):
            correction.hear((0, 1), (1.0, 1.0), (0.0, 0.0))
    assert max(steady.factors) < 0.2


def pauses(probing: Probing, heard: Sequence[float], price: float) -> list[int]:
    """Plain steps before each of some probes, which bring so much."""
    found = []
    for surplus in heard:
        found.append(0)
        while not probing.is_due(is_plain=True):
            found[-1] += 1
        probing.hear(surplus, price)
    return found


def has_accepted(**adaptation: object) -> Probing:
    probing = Probing(Adaptation(**adaptation))  # type: ignore[arg-type]
    probing.accept()
    return probing


def test_probes_in_vain_get_rarer_by_their_price_and_one_that_pays_is_followed_up() -> None:
    dear = has_accepted()
    assert pauses(dear, [-1.0] * 6, 2.0) == [4, 8, 16, 32, 64, 64]
    assert pauses(dear, [0.5, 0.5, -1.0, -1.0, -1.0], 2.0) == [64, 0, 0, 4, 8]
    assert pauses(has_accepted(), [-1.0] * 5, 0.1) == [4, 8, 16, 20, 20]
    assert pauses(has_accepted(), [-1.0] * 3, 0.0) == [4, 4, 4], "what is free is frequent"
    assert pauses(has_accepted(probe_every=2), [-1.0] * 3, 2.0) == [2, 2, 2]
    assert not any(Probing(Adaptation(is_on=False)).is_due(is_plain=True) for _ in range(200))


def test_probes_get_rarer_sooner_while_nothing_was_ever_accepted() -> None:
    blind = Probing(Adaptation())
    assert pauses(blind, [-1.0] * 4, 2.0) == [4, 16, 64, 64]
    blind.accept()
    assert pauses(blind, [0.5, -1.0, -1.0, -1.0], 2.0) == [64, 0, 4, 8], "for good"
    assert pauses(Probing(Adaptation()), [-1.0] * 4, 0.1) == [4, 16, 20, 20]


@pytest.mark.parametrize("make", FOREIGN)
def test_a_sequence_whose_drafts_are_never_accepted_drafts_rarely_from_the_start(
    make: Callable[..., TreePolicy],
) -> None:
    """So does the next one: what it may draft, it tries afresh, even where learning is shared."""
    policy = make(1.0, 2.0, is_shared=True)
    for seed in range(2):
        steps = play(policy.begin(seed), 160, lambda said: 0.0, says=(0.95,))
        drafted = [place for place, step in enumerate(steps) if step.depth]
        whole = [place for place in drafted if steps[place].depth > 1]
        probes = drafted[len(whole) :]
        waits = [then - now for now, then in pairwise(probes)]
        assert len(whole) <= 2
        assert probes[0] - len(whole) < 10
        assert waits[0] == 17
        assert set(waits[1:]) == {26}, "as rare as its price demands"
        assert not any(step.reads_root for step in steps)


def test_the_surplus_is_believed_more_the_more_was_seen() -> None:
    surplus = Surplus(Adaptation())
    assert surplus.expected(1.0) == 1.0
    for _ in range(5):
        surplus.hear(-1.0)
    assert 0 < surplus.expected(1.0) < 1
    for _ in range(60):
        surplus.hear(-1.0)
    assert surplus.expected(1.0) < -0.3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"memory": 0}, "needs memory and priors above 0"),
        ({"probe_every": 0}, "probe_every of at least 1"),
        ({"probe_share": 0.0}, "probes may take 0.0 of plain decoding's time"),
        ({"least_acceptance": 0.0}, "acceptance may be multiplied by 0.0 to 8.0"),
        ({"most_acceptance": 0.5}, "acceptance may be multiplied by 0.01 to 0.5"),
    ],
)
def test_senseless_adaptation_is_refused(given: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        Adaptation(**given)  # type: ignore[arg-type]
