"""Times of steps: trees take blocks of steps in turn, and a table follows that never falls."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from draft_heads import KINDS, random_heads
from entmtp.calibrate import timing
from entmtp.calibrate.latency_table import (
    LatencyTable,
    Looks,
    Spread,
    TimedSwitch,
    TimedTree,
    all_times,
    read_latency,
    times_at,
    write_latency,
)
from entmtp.calibrate.origin import Origin
from entmtp.calibrate.timing import TimingConfig, measure_latency, trees_to_time
from entmtp.calibrate.told import WAYS, TakingTurns
from entmtp.engine import Engine, GenerationParams, StepSeconds, TokenEvent, batch
from entmtp.errors import ArtefactError, BadInput, TreeError
from entmtp.scheduler import OfBatch
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import tiny
from reference import random_prompts

TEXTS = random_prompts(3, 8, longest=30)
"""Of eight tokens, so that heads which know nothing are often right."""
QUICK = TimingConfig(contexts=(8, 40), seconds=0.0, block=3)
TREES = [full(2, 2), full(3, 2)]


def table(kind: str, config: TimingConfig = QUICK) -> LatencyTable:
    return measure_latency(tiny(), random_heads(tiny(), kind), TEXTS, TREES, config)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_tree_is_timed_at_every_context(kind: str, batch_size: int) -> None:
    measured = table(kind, replace(QUICK, batch_size=batch_size))
    trees = [ROOT, *map(chain, range(1, 5)), *TREES]
    assert [entry.tree for entry in measured.entries] == trees * 2
    assert measured.batch_size == batch_size
    for place, entry in enumerate(measured.entries):
        assert entry.num_samples == 2  # the first step of a block is a switch
        # Text grows as it is decoded.
        assert (8, 40)[place // len(trees)] < entry.context < (60, 100)[place // len(trees)]
        assert 0 < entry.verify.low <= entry.verify.median <= entry.verify.high
        assert entry.host.median > 0
        assert entry.draft.median > 0
    assert [one.num_samples for one in measured.switches] == [7, 7]
    assert 8 < measured.switches[0].context < 40 < measured.switches[1].context
    times = measured.times(20)
    assert times.rows == (1, 2, 3, 4, 5, 7, 13)
    assert len(times.draft_seconds) == 5
    for seconds in (times.verify_seconds, times.draft_seconds, times.width_seconds):
        assert all(first <= second for first, second in pairwise(seconds))


def test_times_are_what_the_clocks_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose time is known: 10 + 2 a row, 3 a level, 1/2 a node, 5 for each acceptance."""

    def told(engine: Engine) -> StepSeconds:
        tree: Tree = engine.policy.next  # type: ignore[attr-defined]
        accepted = engine._loop.running[0]._last_accepted
        draft = 3.0 * tree.depth + 0.5 * (tree.num_nodes - 1 - tree.depth)
        return StepSeconds(draft, 10.0 + 2.0 * tree.num_nodes, 1.0 + 5.0 * accepted)

    monkeypatch.setattr(Engine, "last_step", property(told))
    measured = table("hydra", replace(QUICK, block=6))
    assert measured.accepted_seconds == pytest.approx(5.0)
    accepted = {entry.tree: entry.num_accepted for entry in measured.entries[:7]}
    assert accepted[ROOT] == 0
    assert max(accepted.values()) > 0.1
    for entry in measured.entries:
        assert entry.verify.median == 10 + 2 * entry.tree.num_nodes
    monkeypatch.setattr(Engine, "last_step", property(lambda engine: silent(told(engine))))
    times = table("hydra").times(100)
    assert times.draft_seconds == (0, 3, 6, 9, 12)
    assert times.host_seconds == 1
    assert times.verify_seconds == tuple(10 + 2 * rows for rows in times.rows)
    # A tree of 7 nodes, 2 deep, drafts 4 beside the path; one of 13 drafts 10.
    assert times.step(7, 2) == 10 + 14 + 6 + 2 + 1
    assert times.step(13, 2) == 10 + 26 + 6 + 5 + 1
    assert times.step(1, 0) == 10 + 2 + 1
    assert times.switch_seconds == 0


@pytest.mark.parametrize("seconds", [4.0, -4.0])
def test_what_a_switch_takes_longer_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Two trees of five rows stand side by side: to come back from the second one is none."""
    taken: list[int] = []

    def step(engine: Engine) -> None:
        tree: Tree = engine.policy.next  # type: ignore[attr-defined]
        taken.append(tree.num_nodes)
        real(engine)

    def told(engine: Engine) -> StepSeconds:
        last, rows = taken[-2:]
        return StepSeconds(1.0, 10.0 + rows + seconds * (rows != last), 1.0)

    real = Engine.step
    monkeypatch.setattr(Engine, "step", step)
    monkeypatch.setattr(Engine, "last_step", property(told))
    pair = [Tree.from_paths([(0,), (1,), (2,), (0, 0)]), full(3, 2)]
    measured = measure_latency(tiny(), random_heads(tiny(), "hydra"), TEXTS, pair, QUICK)
    assert {entry.verify for entry in measured.entries if entry.tree.num_nodes == 5} == {
        Spread(15.0, 15.0, 15.0)
    }
    assert [one.num_samples for one in measured.switches] == [6, 6]
    assert {one.seconds for one in measured.switches} == {Spread(seconds, seconds, seconds)}
    assert measured.times(20).switch_seconds == max(seconds, 0.0)
    assert measured.times(20).step(5, 2) == 17.0


def test_each_block_is_behind_a_step_of_the_next_tree_and_another_tree_begins_in_each_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    visits: list[list[int]] = []

    def visit(bench: object, context: int, first: int, seen: object) -> None:
        visits.append([])
        real_visit(bench, context, first, seen)

    def sample(bench: object, tree: Tree, *rest: object) -> object:
        visits[-1].append(tree.num_nodes)
        return real_sample(bench, tree, *rest)

    real_visit, real_sample = timing._Bench.visit, timing._Bench._sample
    monkeypatch.setattr(timing._Bench, "visit", visit)
    monkeypatch.setattr(timing._Bench, "_sample", sample)
    clock = iter(range(1000))
    monkeypatch.setattr(timing, "perf_counter", lambda: float(next(clock)))
    config = TimingConfig(contexts=(8,), seconds=100.0, block=2)
    measured = measure_latency(tiny(), random_heads(tiny(), "medusa"), TEXTS, TREES, config)
    assert measured.switches[0].num_samples == 7 * (len(visits) - 1)
    # The first visit warms up.
    assert visits[1] == [
        1,
        *(2, 1, 1),
        *(3, 2, 2),
        *(4, 3, 3),
        *(5, 4, 4),
        7,
        5,
        5,
        13,
        7,
        7,
        1,
        13,
        13,
    ]
    assert [taken[0] for taken in visits] == [1, 1, 2, 3, 4]


def test_what_looks_cost_is_told_by_steps_that_differ_in_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafting a node more costs the heads something; that is no look."""
    ways: list[str] = []

    def step(engine: Engine) -> None:
        before = [list(each.token_ids) for each in engine._loop.running]
        real(engine)
        policy = engine.policy
        assert isinstance(policy, TakingTurns)
        ways.append(policy.way)
        if policy.way != "nothing" and before:
            assert policy.drafted == full(2, 2)
            assert policy.next == Tree.from_paths(full(2, 2).paths[1:-1])

    def told(engine: Engine) -> StepSeconds:
        look = {"nothing": 0.0, "root": 0.5, "draft": 0.25}[ways[-1]]
        return StepSeconds(1.0, 10.0, 2.0 + look)

    real = Engine.step
    monkeypatch.setattr(Engine, "step", step)
    monkeypatch.setattr(Engine, "last_step", property(told))
    measured = table("hydra", replace(QUICK, contexts=(8,)))
    assert measured.looks == Looks(0.5, 0.25)
    # One step before the blocks and one in each that do not count.
    assert ways[-13:] == ["nothing"] * 5 + ["root"] * 4 + ["draft"] * 4


def test_looks_are_real_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A told policy reads the root where it is told to, and cuts a draft to the same tree."""
    asked: list[bool] = []

    def read(logits: torch.Tensor | None, *others: object) -> object:
        asked.append(logits is not None)
        return real(logits, *others)  # type: ignore[arg-type]

    real = batch.signals_on_host
    monkeypatch.setattr(batch, "signals_on_host", read)
    policy = TakingTurns([ROOT, full(2, 2)])
    policy.drafted, policy.next = full(2, 2), chain(2)
    engine = Engine(tiny(), random_heads(tiny(), "hydra"), policy)
    request = engine.add(random_prompts(1, 8, longest=9)[0], GenerationParams(40, ignore_eos=True))
    for way in (*WAYS, *WAYS):
        policy.way = way
        engine.step()
        assert asked[-1] == (way == "root")
        event = list(engine.take_events(request))[-1]
        assert isinstance(event, TokenEvent)
        assert event.decision is not None
        assert event.decision.tree == chain(2)
        assert event.decision.num_drafted == (6 if way == "draft" else 2)
        assert bool(event.decision.confidences) == (way == "draft")
    engine.forget(request)


def silent(seconds: StepSeconds) -> StepSeconds:
    return replace(seconds, host=1.0)


def entry(tree: Tree, context: float, draft: float, verify: float, host: float) -> TimedTree:
    spreads = (Spread(part, part, part) for part in (draft, verify, host))
    return TimedTree(tree, context, 4, 0.5, *spreads)


OWN = Origin("a", "b", "float32", "eager", "cpu")
MACHINE = {"processor": "x", "num_cpus": 2, "num_threads": 1}
TABLE = LatencyTable(
    OWN,
    MACHINE,
    1,
    0.25,
    tuple(
        entry(tree, context, draft, verify + context / 100, host)
        for context in (200.0, 100.0)
        for tree, draft, verify, host in (
            (ROOT, 0.5, 10, 1),
            (chain(1), 2.5, 12, 1),
            (chain(2), 2.0, 11, 1),  # faster than less work: noise
            (full(2, 2), 4.5, 20, 2),
        )
    ),
    (
        TimedSwitch(200.0, 20, Spread(1.0, 3.0, 4.0)),
        TimedSwitch(100.0, 20, Spread(-2.0, -1.0, 2.0)),
    ),
    Looks(0.25, -0.125),
)


def test_what_falls_is_pooled_and_what_lies_between_is_linear() -> None:
    times = TABLE.times(100)
    assert times.rows == (1, 2, 3, 7)
    assert times.verify_seconds == (11, 12.5, 12.5, 22)  # 2 and 3 rows share their mean
    assert times.draft_seconds == (0, 1.75, 1.75)
    assert times.host_seconds == 1.5  # and what the heads do without drafting
    assert times.width_seconds == (0, 0.125, 0.125, 2.25)
    assert times.step(5, 2) == pytest.approx((12.5 + 22) / 2 + 1.75 + (0.125 + 2.25) / 2 + 1.5)
    assert TABLE.times(150).verify_seconds[0] == 11.5
    # A switch is never cheaper than none.
    assert [TABLE.times(n).switch_seconds for n in (0, 160, 999)] == [0.0, pytest.approx(1.8), 3.0]
    # Nor is a look.
    assert (times.root_seconds, times.read_seconds) == (0.25, 0.0)
    assert TABLE.times(0) == times
    assert TABLE.times(999) == TABLE.times(200)
    assert all_times([TABLE]) == ((100, TABLE.times(100), ()), (200, TABLE.times(200), ()))


def test_larger_batches_are_looked_up_at_the_contexts_of_one_sequence() -> None:
    entries = tuple(entry for entry in TABLE.entries if entry.context == 200)
    larger = replace(TABLE, batch_size=8, entries=entries, switches=TABLE.switches[:1])
    assert [one.batches for one in all_times([TABLE, larger])] == [
        (OfBatch(8, larger.times(200)),),
        (OfBatch(8, larger.times(200)),),
    ]
    between = times_at([TABLE, replace(TABLE, batch_size=8)], 150)
    assert between == (150, TABLE.times(150), (OfBatch(8, TABLE.times(150)),))


def test_several_sequences_are_timed_in_less_time_and_not_at_the_longest_context() -> None:
    config = TimingConfig(contexts=(512, 128, 1024), seconds=60.0)
    assert config.of_batch(4) == TimingConfig((128, 512), 4, 20.0)
    assert replace(config, contexts=(64,)).of_batch(4).contexts == (64,)


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "latency.json"
    write_latency(path, TABLE)
    assert read_latency(path, OWN, MACHINE) == TABLE
    measured = table("medusa")
    write_latency(path, measured)
    assert read_latency(path, Origin.of(tiny(), random_heads(tiny(), "medusa"))) == measured
    assert [each.name for each in tmp_path.iterdir()] == ["latency.json"]
    assert measured.machine["num_threads"] == 1


def test_T07_times_of_something_else_are_refused_and_of_another_machine_said(
    tmp_path: Path,
) -> None:
    path = tmp_path / "latency.json"
    write_latency(path, TABLE)
    with pytest.raises(ArtefactError, match=r"runtime eager, not openvino.*again"):
        read_latency(path, OWN._replace(runtime="openvino"))
    with pytest.warns(UserWarning, match=r"another machine \(processor x, not y; num threads 1"):
        read_latency(path, OWN, {"processor": "y", "num_cpus": 2, "num_threads": 8})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 9}, "has schema version 9, this program reads 3"),
        ({"entries": []}, "broken"),
        ({"entries": [{}]}, "broken"),
        ({"switches": []}, "broken"),
        ({"switches": [{"context": 1}]}, "broken"),
        ({"batch_size": "many"}, "broken"),
        ({"looks": {"root_seconds": 1}}, "broken"),
        ({"looks": {"root_seconds": 10**400, "read_seconds": 0}}, "looks.root_seconds is 1000"),
        ({"accepted_seconds": float("nan")}, "accepted_seconds is nan"),
        ({"accepted_seconds": "nan"}, "'nan' is no number"),
        ({"batch_size": 0}, "0 is no count from 1 up"),
        ({"machine": {"processor": "\ud800"}}, "machine.processor holds half a surrogate pair"),
        ({"switches": [{"context": -1, "num_samples": 1, "seconds": [0, 0, 0]}]}, "-1 is no"),
        ({"switches": [{"context": 1, "num_samples": 1, "seconds": [2, 1, 0]}]}, "no quartiles"),
    ],
)
def test_T09_a_broken_table_is_one_line(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    path = tmp_path / "latency.json"
    write_latency(path, TABLE)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ArtefactError, match=words) as caught:
        read_latency(path)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_timed_is_said() -> None:
    heads = random_heads(tiny(), "hydra")
    with pytest.raises(BadInput, match="there is no text"):
        measure_latency(tiny(), heads, [[]], TREES, QUICK)
    # Seven trees that say 21 tokens together at the most, 4 steps each, a step of the deepest one,
    # and 2 tokens before them.
    with pytest.raises(BadInput, match=r"none of the contexts \[250\].*at most 165 tokens"):
        measure_latency(tiny(), heads, TEXTS, TREES, replace(QUICK, contexts=(250,)))
    with pytest.raises(TreeError, match="5 deep but there are 4"):
        measure_latency(tiny(), heads, TEXTS, [chain(5)], QUICK)
    with pytest.raises(BadInput, match="batch_size is 0"):
        measure_latency(tiny(), heads, TEXTS, TREES, replace(QUICK, batch_size=0))
    with pytest.raises(BadInput, match="block is 1; give a count from 2 up"):
        measure_latency(tiny(), heads, TEXTS, TREES, replace(QUICK, block=1))


def test_time_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Visits go on until the time is spent; the first one, that warms up, is not among them."""
    clock = iter(range(1000))
    monkeypatch.setattr(timing, "perf_counter", lambda: float(next(clock)))
    told: list[float] = []
    measured = measure_latency(
        tiny(),
        random_heads(tiny(), "medusa"),
        TEXTS,
        TREES,
        replace(QUICK, contexts=(8,), seconds=100.0, block=2),
        told.append,
    )
    assert told == sorted(told)
    assert told[-1] == 1
    assert {entry.num_samples for entry in measured.entries[1:]} == {len(told)}


def test_trees_to_time_are_the_best_of_their_sizes() -> None:
    ranks = np.random.default_rng(0).geometric(0.4, size=(200, 3)) - 1
    trees = trees_to_time(ranks, (2, 3, 8, 9999))
    assert [tree.num_nodes for tree in trees[:3]] == [2, 3, 8]
    assert len(trees_to_time(ranks[:1], (2, 3, 4, 5, 6, 7, 8))) < 7, "thin evidence, few trees"
