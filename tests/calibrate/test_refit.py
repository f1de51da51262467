"""Tables of `throughput` fitted anew: on other scores, on other rows, everything else as it was."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest

from entmtp.calibrate.assemble import Clock
from entmtp.calibrate.pipeline import _fit
from entmtp.calibrate.refit import Looks, known_scores, refit, unseeing
from entmtp.calibrate.rehearse import run_seconds, step_parts, switches
from entmtp.calibrate.replay import replay_policy
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import accepted_at, row_ends
from entmtp.errors import BadInput
from entmtp.scheduler import ThroughputPolicy, TreeBank, at_any_length, policy_from_bank
from entmtp.scheduler.bank import MadeFrom
from entmtp.scheduler.bank_file import bank_text
from made_banks import MADE_FOR, fit
from made_traces import RISING, by_chance

TRACE = by_chance(24, 60)
TIMES = replace(RISING, switch_seconds=0.2, root_seconds=0.03, read_seconds=0.02)


@lru_cache
def bank() -> TreeBank:
    return fit(TRACE, TIMES)


def test_the_own_scores_on_the_same_rows_give_the_same_bank() -> None:
    found = refit(bank(), TRACE, TIMES, Looks("p0"))
    assert found.acceptance == bank().acceptance
    for name, rate in bank().timing.rates.items():  # each round starts from the last one's rate
        assert found.timing.rates[name] == pytest.approx(rate, rel=0.01)


def test_a_bank_that_does_not_look_is_the_same_otherwise() -> None:
    blind = unseeing(bank())
    assert policy_from_bank("throughput", bank()).reads_root
    assert not policy_from_bank("throughput", blind).reads_root
    assert blind.acceptance == bank().acceptance
    assert replace(blind, timing=bank().timing) == bank()
    averages = [table.levels for table in blind.stages[0].by_tree]
    assert all(len(levels) == 1 for levels in averages)


def test_other_rows_change_tables_and_rates_only() -> None:
    found = refit(bank(), by_chance(24, 60, seed=5), TIMES)
    assert found.acceptance.stages != bank().acceptance.stages
    acceptance = bank().acceptance
    timing = replace(found.timing, rates=bank().timing.rates, stops=bank().timing.stops)
    timing = replace(timing, looks_at_root=True)
    assert replace(found, acceptance=acceptance, timing=timing) == bank()


@pytest.mark.parametrize(
    ("looks", "scores", "reads_root"),
    [
        (Looks("entropy"), ("entropy", "g1", "g2", "g3"), True),
        (Looks("accepted"), ("accepted", "g1", "g2", "g3"), False),
        (Looks(None), ("accepted", "g1", "g2", "g3"), False),
        (Looks(behind="sum_tree"), ("accepted", "sum_tree"), False),
        (Looks("p0", "sum_tree"), ("p0", "sum_tree"), True),
        (Looks("accepted", "p0sum_tree"), ("accepted", "p0sum_tree"), True),
    ],
)
def test_a_policy_looks_at_what_it_is_fitted_on(
    looks: Looks, scores: tuple[str, ...], reads_root: bool
) -> None:
    found = refit(bank(), TRACE, TIMES, looks)
    assert tuple(stage.score for stage in found.stages) == scores
    policy = policy_from_bank("throughput", found)
    assert isinstance(policy, ThroughputPolicy)
    assert policy.reads_root == reads_root
    run = replay_policy(TRACE, policy)
    assert found.timing.rates["throughput"] == pytest.approx(
        (1 + run.run.accepted).sum() / run_seconds(TRACE, run, TIMES).sum(),
        rel=0.01,
    )


def test_who_looks_at_nothing_expects_the_average_step() -> None:
    before = refit(bank(), TRACE, TIMES, Looks(None)).stages[0]
    means = [np.mean(accepted_at(TRACE, one.tree)[begins(TRACE)]) for one in bank().trees]
    for table, mean in zip(before.by_tree, means, strict=True):
        assert (table(0.1), table(3.0)) == pytest.approx((mean, mean))


def begins(trace: RankTrace) -> np.ndarray:
    return np.arange(len(trace.ranks)) < row_ends(trace)


def test_unknown_scores_are_named() -> None:
    with pytest.raises(BadInput, match="no score 'mood' to fit by; known: p0, entropy"):
        refit(bank(), TRACE, TIMES, Looks("mood"))
    assert {"accepted", "sum_tree", "p0sum_tree", "g3"} <= set(known_scores(bank(), TRACE))


def test_the_parts_of_a_run_are_what_it_is_charged() -> None:
    run = replay_policy(TRACE, policy_from_bank("throughput", bank()))
    parts = step_parts(TRACE, run, TIMES)
    assert sum(map(sum, parts)) == pytest.approx(run_seconds(TRACE, run, TIMES).sum())
    assert run.reads_root.any()
    looks = 0.03 * run.reads_root + 0.02 * run.reads_draft
    assert parts.look.tolist() == pytest.approx(looks.tolist())
    sizes = [tree.num_nodes for tree in run.trees]
    changes = sum(a != b for a, b in pairwise(sizes))
    assert 0 < switches(TRACE, run).sum() <= changes
    assert parts.switch.sum() == pytest.approx(0.2 * switches(TRACE, run).sum())


def test_the_clock_decides_about_the_section_of_timing_alone() -> None:
    origin = MadeFrom("prompts", TRACE.num_rows, ("code",), 0.0, 0)
    future = accepted_at(TRACE, bank().best_static) / (1 + bank().best_static.depth)
    telling = replace(TRACE, root_probability=future.astype(np.float32))
    looks, sections = set(), set()
    for root, switch, slow in ((0.0, 0.0, 1.0), (2.0, 0.2, 1.0), (0.0, 0.1, 3.0)):
        verify = tuple(slow * seconds for seconds in RISING.verify_seconds)
        times = replace(RISING, verify_seconds=verify, root_seconds=root, switch_seconds=switch)
        _, made = _fit(telling, Clock(times, at_any_length(times)), MADE_FOR, origin)
        looks.add(made.timing.looks_at_root)
        sections.add(bank_text(made).partition('"timing"')[0])
    assert looks == {True, False}
    assert len(sections) == 1
