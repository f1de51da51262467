"""Who runs for a recommendation, and who has won: pure functions of predictions and times."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest

from entmtp.calibrate.assemble import Candidates, Clock, assemble
from entmtp.calibrate.compare import Replayed
from entmtp.calibrate.finalists import (
    CLOSE,
    MAX_STATICS,
    Answered,
    Finalists,
    Round,
    Rounds,
    choose_static,
    conclude,
    find_finalists,
    recommend,
    with_finalists,
)
from entmtp.calibrate.rehearse import Rehearsed
from entmtp.calibrate.throughput import Evaluation, Prediction
from entmtp.scheduler import MadeFor, at_any_length
from entmtp.scheduler.bank import Finalist, Interval, MadeFrom
from entmtp.trees import ROOT, chain, full
from made_traces import RISING, by_chance

ONE = Interval(1.0, 1.0, 1.0)


def shape_of(place: int) -> tuple[int, int]:
    tree = candidates().trees[place]
    return tree.num_nodes, tree.depth


def rehearsed(name: str, low: float | None, high: float | None) -> Rehearsed:
    return Rehearsed(Replayed(name, "", 1.0, 0.0, low, high), 2.0, 0.0, {})


@lru_cache
def candidates() -> Candidates:
    return Candidates.of(by_chance(24, 60), RISING, 0)


def test_finalists_are_what_replay_does_not_rule_out() -> None:
    found = find_finalists(
        candidates(),
        [
            rehearsed("static", 0.0, 0.0),
            rehearsed("ladder", 0.0, 0.0),  # the static tree by another name
            rehearsed("hysteresis", -0.05, -0.01),
            rehearsed("throughput", -0.05, 0.01),
            rehearsed("per-step", None, None),
        ],
    )
    assert found.policies == ("throughput", "per-step")
    best = candidates().offer.chosen[-1]
    assert found.statics[0] == best
    assert 1 < len(set(found.statics)) == len(found.statics) <= MAX_STATICS
    shapes = {(candidates().trees[p].num_nodes, candidates().trees[p].depth) for p in found.statics}
    assert len(shapes) == len(found.statics)
    evaluation = candidates().evaluation
    rates = [one.tokens_per_second for one in evaluation.predictions]
    doubtful = [p for p in range(len(rates)) if not evaluation.is_surely_faster(best, p)]
    assert min(map(shape_of, doubtful)) in map(shape_of, found.statics)
    for place in found.statics[1:]:
        is_close = rates[place] > (1 - CLOSE) * rates[best]
        assert is_close or not evaluation.is_surely_faster(best, place)


def steps(seconds: float, count: int = 10, tokens: int = 20) -> Answered:
    """An answer whose steps take so long each."""
    return Answered(seconds * count, tokens, count)


SMALL, LARGE, DEEP = chain(2), full(3, 2), chain(3)
TREES = (ROOT, SMALL, LARGE, DEEP)


def evaluated(lengths: Sequence[float], doubt: float = 0.0, num_rows: int = 20) -> Evaluation:
    """Trees that say so much a step; of two of them that is as doubtful as one is."""
    predictions = [
        Prediction(tree, length, 1.0, length, None, None)
        for tree, length in zip(TREES, lengths, strict=True)
    ]
    draws = np.random.default_rng(0).normal(size=(len(TREES), 400))
    return Evaluation(tuple(predictions), doubt * draws / 2**0.5, num_rows)


def timed(extra: float, spread: float, count: int) -> list[Round]:
    """The large tree's steps take so much longer than the small one's, give or take `spread`."""
    signs = [(-1) ** place for place in range(count)]
    return [
        {"static 1": steps(pace), "static 2": steps((extra + sign * spread) * pace, count=15)}
        for pace, sign in enumerate(signs, start=1)
    ]


def test_the_static_tree_of_most_tokens_by_length_on_all_and_time_live_is_chosen() -> None:
    # The second one's steps take 5 % longer and say 10 % more; on these prompts it said less.
    rounds = timed(1.05, 0.0, 3)
    assert choose_static((1, 2), evaluated((1.0, 2.0, 2.2, 2.0)), rounds) == 2
    assert choose_static((1, 2), evaluated((1.0, 2.0, 2.05, 2.0)), rounds) == 1
    assert choose_static((2, 1), evaluated((1.0, 2.0, 2.05, 2.0)), rounds) == 1
    much = evaluated((1.0, 2.0, 9.0, 2.0))
    assert choose_static((1, 2), much, []) == 1, "nothing was measured"
    nothing: Round = {"static 1": Answered(0.0, 0, 0), "static 2": Answered(0.0, 0, 0)}
    assert choose_static((1, 2), much, [nothing, *rounds[:1]]) == 1
    assert choose_static((1, 2), much, [nothing, *rounds]) == 2


def test_T03_of_trees_that_thin_evidence_cannot_tell_apart_the_smallest_is_chosen() -> None:
    # Twelve nodes say 10 % more and take 5 % longer: by how much is the question.
    faster = (1.0, 2.0, 2.2, 2.0)
    for rounds, doubt, num_rows, chosen in (
        (timed(1.05, 0.01, 12), 0.005, 64, 2),
        (timed(1.05, 0.2, 12), 0.005, 64, 1),  # times vary
        (timed(1.05, 0.01, 2), 0.005, 64, 1),  # or are few
        (timed(1.05, 0.01, 12), 0.05, 64, 1),  # or on other prompts it may say less
        (timed(1.05, 0.01, 12), 0.02, 64, 2),
        (timed(1.05, 0.01, 12), 0.02, 6, 1),
        (timed(1.05, 0.01, 12), 0.0, 3, 1),
    ):
        for statics in ((1, 2), (2, 1)):
            assert choose_static(statics, evaluated(faster, doubt, num_rows), rounds) == chosen
    # One that is surely slower is none of them, however small.
    alike: Sequence[Round] = [
        {"static 2": steps(1.0), "static 3": steps(1.0), "static 1": steps(1.0)}
    ] * 4
    assert choose_static((2, 3, 1), evaluated((1.0, 1.5, 2.0, 2.0)), alike) == 3


def compared(*ratios: float) -> list[Round]:
    """Prompts that are each other's equal in nothing but the ratio."""
    return [
        {"static 3": Answered(pace, 20, 9), "throughput": Answered(pace / ratio, 20, 8)}
        for pace, ratio in enumerate(ratios, start=1)
    ]


PROMISED = {"static 3": 50.0, "static 5": 51.0, "throughput": 55.0}


def test_ratios_are_of_single_prompts() -> None:
    choosing: Sequence[Round] = [
        {"static 3": steps(1.0), "static 5": steps(1.25)} for _ in range(3)
    ]
    rounds = Rounds(choosing, compared(1.1, 1.1, 1.1, 1.1))
    live = conclude(Finalists((5, 3), ("throughput",)), 3, rounds, PROMISED)
    best, other, policy = live
    assert (best.policy, best.trees, best.measured, best.num_prompts) == ("static", (3,), ONE, 4)
    assert (other.policy, other.trees, other.num_prompts) == ("static", (5,), 3)
    assert other.measured == pytest.approx((0.8, 0.8, 0.8))
    assert other.promised == pytest.approx(1.02)
    assert (policy.policy, policy.trees, policy.num_prompts) == ("throughput", (), 4)
    assert policy.measured == pytest.approx((1.1, 1.1, 1.1))
    assert policy.promised == pytest.approx(1.1)


def test_of_few_prompts_nothing_is_said() -> None:
    finalists = Finalists((3,), ("throughput",))
    assert conclude(finalists, 3, Rounds([], compared(1.1, 1.2, 1.3)), PROMISED) == ()
    # An answer of one token has no time behind it.
    short: Round = {"static 3": Answered(0.0, 0, 0), "throughput": Answered(0.0, 0, 0)}
    rounds = Rounds([], [short, *compared(1.1, 1.2, 1.3, 1.1)])
    assert conclude(finalists, 3, rounds, PROMISED)[1].num_prompts == 4


def test_static_trees_alone_are_ranked_too() -> None:
    rounds: Sequence[Round] = [{"static 3": steps(1.0), "static 5": steps(0.5)} for _ in range(5)]
    live = conclude(Finalists((3, 5), ()), 5, Rounds(rounds, []), PROMISED)
    assert [one.trees for one in live] == [(5,), (3,)]
    assert live[1].measured.value == pytest.approx(0.5)
    assert recommend(live) == "static"


def test_bounds_are_over_the_static_tree_that_was_chosen_live() -> None:
    made = candidates()
    origin = MadeFrom("prompts", 24, ("code",), 0.0, 0)
    made_for = MadeFor("target", "heads", "eager", "float32", "a machine")
    bank = assemble(made, Clock(RISING, at_any_length(RISING)), made_for, origin)
    assert with_finalists(bank, made, ()) == bank
    before = bank.timing.oracle_bounds
    for place in (0, len(made.trees) // 2, len(made.trees) - 1):
        settled = with_finalists(bank, made, [Finalist("static", (place,), 1.0, ONE, 12)])
        assert settled.best_static == made.trees[place]
        bounds = settled.timing.oracle_bounds
        assert bounds["best_static"] == made.evaluation.predictions[place].tokens_per_second
        assert bounds["best_static"] <= bounds["bank_this_step"] <= bounds["bank_perfect"]
        kept = ("plain", "fastest_static", "fixed_size", "perfect_size", "full")
        assert list(bounds) == list(before)
        assert all(bounds[name] == before[name] for name in kept)


def test_only_what_is_surely_faster_live_is_recommended() -> None:
    def of(policy: str, value: float, low: float, promised: float = 1.5) -> Finalist:
        return Finalist(policy, (), promised, Interval(value, low, 2 * value - low), 12)

    static = Finalist("static", (3,), 1.0, ONE, 12)
    faster_tree = Finalist("static", (5,), 1.0, Interval(1.1, 1.05, 1.2), 5)
    doubtful = [static, faster_tree, of("ladder", 1.2, 0.99), of("per-step", 1.3, 1.0)]
    assert recommend(doubtful) == "static"
    sure = [*doubtful, of("hysteresis", 1.02, 1.001), of("throughput", 1.04, 1.01, 0.9)]
    assert recommend(sure) == "throughput", "whatever was promised"
    assert recommend(()) == "static"
