"""A bank from a trace and times: which trees, which of them count, and what policies start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from entmtp.calibrate.assemble import Candidates, Clock
from entmtp.calibrate.offer import choose_offer
from entmtp.calibrate.pipeline import AnswerConfig, CalibrationConfig, calibrate
from entmtp.calibrate.pool import candidate_trees, within
from entmtp.calibrate.rehearse import make_folds, rehearse, run_seconds
from entmtp.calibrate.replay import PolicyRun, replay_policy, replay_tree
from entmtp.calibrate.throughput import evaluate, sure_bank
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.calibrate.walk import accepted_at, row_tokens, rows_of, take_rows
from entmtp.errors import BadInput
from entmtp.scheduler import (
    Adaptation,
    OfBatch,
    StaticPolicy,
    StepTimes,
    TreeBank,
    at_any_length,
    policy_from_bank,
    read_bank,
    write_bank,
)
from entmtp.scheduler.bank import MadeFrom
from entmtp.scheduler.bank_file import bank_text
from entmtp.scheduler.registry import POLICIES
from entmtp.trees import ROOT, Tree, chain
from made_banks import fit
from made_traces import RISING, by_chance, by_hand
from rank_traces import PROMPTS, talker, talkers_heads

DEAR = StepTimes((1, 64), (1.0, 9.0), (0.0, 0.4, 0.8, 1.2), 0.1)
"""Drafts never pay"""
SWITCHING = replace(RISING, switch_seconds=0.2)
LOOKING = replace(RISING, root_seconds=0.03, read_seconds=0.02)
WIDE = replace(RISING, width_seconds=(0.0, 0.1, 0.2, 0.8))


@lru_cache
def usual() -> RankTrace:
    return by_chance(24, 60)


@lru_cache
def usual_bank(times: StepTimes = RISING) -> TreeBank:
    return fit(usual(), times)


def test_candidates_are_parts_of_the_wide_tree_and_the_same_whatever_the_times() -> None:
    trace = usual()
    trees = candidate_trees(trace)
    assert trees[0] == ROOT
    assert list(trees) == sorted(set(trees), key=lambda tree: (tree.num_nodes, tree.paths))
    assert all(set(tree.paths) <= set(trace.wide_tree.paths) for tree in trees)
    assert usual_bank().trees == usual_bank(DEAR).trees
    nothing = replace(trace, ranks=np.full_like(trace.ranks, 70))
    assert candidate_trees(nothing) == (ROOT, chain(1))


def test_in_company_the_best_tree_is_that_of_so_many_sequences() -> None:
    trace = usual()
    candidates = Candidates.of(trace, RISING, 0)
    alone = Clock(RISING, at_any_length(RISING))
    assert candidates.best_in_company(alone) == ()
    assert usual_bank().static_trees == (usual_bank().best_static,)
    # Of four sequences drafts never pay, and between one and four they pay less and less.
    clock = alone._replace(batches=(OfBatch(4, DEAR),))
    assert clock.batch_sizes == (1, 4)
    places = candidates.best_in_company(clock)
    sizes = [candidates.trees[place].num_nodes for place in places]
    assert len(sizes) == 3
    assert sizes[-1] == 1
    assert [usual_bank().best_static.num_nodes, *sizes] == sorted(
        [usual_bank().best_static.num_nodes, *sizes], reverse=True
    )
    assert usual_bank().best_static.num_nodes > 1
    for number, place in enumerate(places, start=2):
        evaluation = evaluate(trace, candidates.trees, clock.of_company(number), 0)
        assert candidates.trees[place] == sure_bank(evaluation)[-1].tree


def test_within_cuts_futures_where_the_tree_ends() -> None:
    trace = by_hand([[0, 1, 0], [1, 0, 0], [5, 0, 0]])
    tree = Tree.from_paths([(0,), (0, 1), (1,)])
    cut = within(trace, tree).ranks
    assert (cut < 64).tolist() == [[True, True, False], [True, False, False], [False] * 3]


def test_what_stands_in_front_of_the_timing_is_the_same_whatever_the_times() -> None:
    before = bank_text(usual_bank()).split('"timing"')
    behind = bank_text(usual_bank(DEAR)).split('"timing"')
    assert before[0] == behind[0]
    assert before[1] != behind[1]


def test_a_bank_is_written_read_and_gives_every_policy(tmp_path: Path) -> None:
    bank = usual_bank()
    write_bank(bank, tmp_path / "bank.json")
    read = read_bank(tmp_path / "bank.json")
    assert bank_text(read) == bank_text(bank)
    assert all(policy_from_bank(name, read).name == name for name in POLICIES)


def test_where_drafts_never_pay_the_bank_is_plain_decoding() -> None:
    trace, bank = usual(), usual_bank(DEAR)
    assert bank.bank == (ROOT,)
    run = replay_policy(trace, policy_from_bank("throughput", bank))
    share = row_tokens(trace).sum() * DEAR.step(1, 0) / run_seconds(trace, run, DEAR).sum()
    assert share > 0.95


@pytest.mark.parametrize("num_rows", [1, 3])
def test_T03_few_rows_make_no_big_tree(num_rows: int) -> None:
    trace = take_rows(usual(), range(num_rows))
    bank = fit(trace)
    assert bank.bank == (ROOT,)
    assert max(tree.num_nodes for tree in bank.offer) == 2


@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 24])
def test_T03_bounds_are_of_the_bank_that_was_made_however_few_rows(num_rows: int) -> None:
    trace = take_rows(usual(), range(num_rows))
    bank = fit(trace)
    bounds = bank.timing.oracle_bounds
    own = evaluate(trace, [bank.best_static], RISING).best.tokens_per_second
    assert bounds["best_static"] == own
    assert own <= bounds["bank_this_step"] <= bounds["bank_perfect"]
    rates = [figure.value for figure in bank.timing.tokens_per_second]
    assert bounds["fastest_static"] == max(rates) >= own
    if num_rows == 1:
        assert bounds["fastest_static"] > own == bounds["plain"], "what thin evidence gives up"


def test_T03_a_tree_that_one_prompt_wants_is_not_offered() -> None:
    """A prompt has many steps, and they are alike: five prompts are five pieces of evidence."""
    cheap = StepTimes((1, 64), (1.0, 1.1), (0.0, 0.0, 0.0), 0.0)
    trees = (ROOT, chain(1), Tree.from_paths([(1,), (1, 0)]))
    wants_it, does_not = [[1, 0]] * 80, [[MISS, MISS]] * 80
    for rows, offered in (([wants_it, *[does_not] * 4], (0, 1)), ([wants_it] * 5, (0, 2))):
        trace = by_hand(*rows)
        assert choose_offer(trace, cheap, trees, evaluate(trace, trees, cheap)).offered == offered


def test_larger_trees_than_the_best_static_one_are_offered() -> None:
    bank = fit(by_chance(40, 100))
    assert bank.best_static.num_nodes > 1
    assert bank.offer[-1].num_nodes > bank.best_static.num_nodes
    assert len({tree.num_nodes for tree in bank.offer}) <= 8
    assert len(bank.bank) <= 8


def test_policies_are_priced_by_what_they_draft_and_verify() -> None:
    """A static tree takes as many steps of its own as it does; levels wide take longer."""
    trace = by_chance(8, 40)
    tree = Tree.from_paths([(0,), (1,), (0, 0), (1, 0)])
    run = replay_policy(trace, StaticPolicy(tree))
    steps = len(replay_tree(trace, tree).starts)
    assert run_seconds(trace, run, WIDE).sum() == pytest.approx(steps * WIDE.step(5, 2))
    assert WIDE.step(5, 2) > RISING.step(5, 2)
    bank = fit(trace, WIDE)
    run = replay_policy(trace, policy_from_bank("throughput", bank))
    by_step = [
        WIDE.verify(chosen.num_nodes) + WIDE.draft(nodes, levels) + WIDE.host_seconds
        for chosen, nodes, levels in zip(run.trees, run.drafted_nodes, run.drafted, strict=True)
    ]
    assert run_seconds(trace, run, WIDE).sum() == pytest.approx(sum(by_step))


def test_a_policy_is_charged_for_every_switch_within_a_row() -> None:
    trace = by_chance(8, 40)
    bank = fit(trace)
    for name in ("static", "hysteresis", "throughput", "per-step"):
        run = replay_policy(trace, policy_from_bank(name, bank))
        steps = list(zip(rows_of(trace, run.run.starts), run.trees, strict=True))
        switches = [
            one.num_nodes != other.num_nodes and row == then
            for (row, one), (then, other) in pairwise(steps)
        ]
        assert any(switches) == (name != "static")
        more = run_seconds(trace, run, SWITCHING) - run_seconds(trace, run, RISING)
        assert more.sum() == pytest.approx(SWITCHING.switch_seconds * sum(switches))


@pytest.mark.parametrize("name", ["throughput", "per-step"])
def test_a_policy_that_knows_what_switches_cost_is_faster_for_it(name: str) -> None:
    trace, bank = usual(), usual_bank(SWITCHING)
    way = Adaptation(tree_prior=6.0)  # trees' own evidence counts, so that there are many switches
    knows = replay_policy(trace, policy_from_bank(name, bank, way))
    timing = replace(bank.timing, step_times=at_any_length(RISING))
    jumps = replay_policy(trace, policy_from_bank(name, replace(bank, timing=timing), way))
    assert _num_switches(knows) < 0.6 * _num_switches(jumps)
    seconds = [run_seconds(trace, run, SWITCHING).sum() for run in (knows, jumps)]
    assert seconds[0] < 0.99 * seconds[1]
    # It is the switches: without them the one that jumps is no slower.
    free = [run_seconds(trace, run, RISING).sum() for run in (knows, jumps)]
    assert free[1] <= free[0]


def test_a_policy_is_charged_for_what_it_looks_at_and_a_static_tree_is_not() -> None:
    trace, bank = by_chance(8, 40), usual_bank()
    for name, reads_root, reads_draft in (
        ("static", False, False),
        ("throughput", True, True),
        ("per-step", False, True),
    ):
        run = replay_policy(trace, policy_from_bank(name, bank))
        steps, drafts = len(run.trees), int((run.drafted > 0).sum())
        more = run_seconds(trace, run, LOOKING).sum() - run_seconds(trace, run, RISING).sum()
        looks = LOOKING.root_seconds * steps * reads_root
        looks += LOOKING.read_seconds * drafts * reads_draft
        assert more == pytest.approx(looks), name
        # By each step's own clock, too.
        clock = [
            replay_policy(trace, policy_from_bank(name, bank), times=at_any_length(times)).seconds
            for times in (LOOKING, RISING)
        ]
        assert (clock[0] - clock[1]).sum() == pytest.approx(looks), name


def test_who_looks_for_nothing_stops_looking() -> None:
    """Where a look costs more than it brings, ladder and hysteresis are the static tree."""
    trace = usual()
    dear = fit(trace, replace(RISING, root_seconds=1.0, read_seconds=1.0))
    assert dear.timing.chosen == usual_bank().timing.chosen, "static trees are priced as before"
    assert dear.timing.rates["throughput"] < usual_bank().timing.rates["throughput"]
    assert dear.timing.oracle_bounds == usual_bank().timing.oracle_bounds
    static = replay_policy(trace, policy_from_bank("static", dear))
    for name in ("ladder", "hysteresis"):
        run = replay_policy(trace, policy_from_bank(name, dear))
        assert run.trees == static.trees, name
        assert not run.reads_root.any(), name
        assert not run.reads_draft.any(), name
    assert usual_bank().timing.ladder.score != dear.timing.ladder.score


def _num_switches(run: PolicyRun) -> int:
    return sum(one.num_nodes != other.num_nodes for one, other in pairwise(run.trees))


def test_static_trees_are_priced_as_in_a_block() -> None:
    """And what is fitted start by start takes switches for free: the same bank's trees come out."""
    bank, dear = usual_bank(), usual_bank(SWITCHING)
    assert dear.timing.tokens_per_second == bank.timing.tokens_per_second
    assert dear.timing.chosen == bank.timing.chosen
    assert dear.timing.offered == bank.timing.offered
    assert dear.timing.sizes == bank.timing.sizes
    assert dear.timing.oracle_bounds == bank.timing.oracle_bounds
    assert dear.timing.rates["throughput"] < bank.timing.rates["throughput"]
    assert bank_text(dear).split('"timing"')[0] == bank_text(bank).split('"timing"')[0]


def test_policies_are_rehearsed_on_rows_that_they_were_not_fitted_on() -> None:
    trace = usual()
    seen: list[RankTrace] = []

    def make(half: RankTrace) -> TreeBank:
        seen.append(half)
        return fit(half)

    folds = make_folds(trace, make)
    assert sorted(row for fold in folds for row in fold.rows) == list(range(24))
    for fold in folds:
        assert (take_rows(trace, fold.rows).ranks == fold.trace.ranks).all()
    # A bank was made of the other fold.
    for half, fold in zip(seen[::-1], folds, strict=True):
        assert (half.ranks == fold.trace.ranks).all()
    found = rehearse(folds, RISING)
    assert [half.num_rows for half in seen] == [12, 12]
    static, *others = found
    assert (static.replayed.name, static.replayed.gain) == ("static", 0.0)
    # The other half's best static trees, on each half.
    steps = [
        len(replay_tree(judged, fit(fitted).best_static).starts)
        for fitted, judged in (seen, seen[::-1])
    ]
    assert static.mean_acceptance_length == pytest.approx(row_tokens(trace).sum() / sum(steps))
    assert [one.replayed.name for one in others] == [
        "ladder",
        "hysteresis",
        "throughput",
        "per-step",
    ]
    assert all(sum(one.num_steps_by_rows.values()) > 0 for one in found)
    assert all(one.seconds_to_choose < 0.01 for one in others)


def test_rates_are_those_that_policies_reach_on_their_rows() -> None:
    trace, bank = usual(), usual_bank()
    for name, rate in bank.timing.rates.items():
        run = replay_policy(trace, policy_from_bank(name, bank))
        reached = row_tokens(trace).sum() / run_seconds(trace, run, RISING).sum()
        assert rate == pytest.approx(reached, rel=0.05)


def test_a_bank_says_how_long_trees_are_on_the_calibration_rows() -> None:
    trace = usual()
    for entry in usual_bank().trees:
        accepted = accepted_at(trace, entry.tree)
        value, low, high = entry.mean_acceptance_length
        assert value == pytest.approx(replay_tree(trace, entry.tree).mean_acceptance_length)
        assert 1 <= low <= value <= high <= 1 + entry.tree.depth
        assert accepted.max() <= entry.tree.depth


def test_answers_of_one_token_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    config = CalibrationConfig(AnswerConfig(max_tokens=1))
    with (
        pytest.warns(UserWarning, match="only 6 prompts"),
        pytest.raises(BadInput, match="all 6 answers end with their first token"),
    ):
        calibrate(talker(), talkers_heads("hydra"), PROMPTS, tmp_path / "bank.json", config)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_heads_that_know_answers_are_seen_to(kind: str, tmp_path: Path) -> None:
    """Half of the answers are known by heart: big trees there, none elsewhere."""
    stages: list[str] = []

    def progress(stage: str, num_done: int, num_all: int) -> None:
        assert 0 <= num_done <= num_all
        stages.append(stage)

    config = CalibrationConfig(AnswerConfig(max_tokens=26, group_size=4))
    config = replace(config, timing=replace(config.timing, seconds=0.0))
    with pytest.warns(UserWarning, match="only 6 prompts"):
        made = calibrate(
            talker(), talkers_heads(kind), PROMPTS, tmp_path / "bank.json", config, progress
        )
    assert list(dict.fromkeys(stages)) == ["answers", "draft", "times", "fit"]
    assert made.bank.made_from == MadeFrom(
        str(made.stored.answers["prompts"]), 6, ("kind 0", "kind 1"), 0.0, 0
    )
    assert bank_text(made.bank) == (tmp_path / "bank.json").read_text()
    assert _longest(made.bank.trees) > 1.3
    assert [path.name for path in tmp_path.iterdir()] == ["bank.json"]


def _longest(trees: Sequence[object]) -> float:
    return max(entry.mean_acceptance_length.value for entry in trees)  # type: ignore[attr-defined]
