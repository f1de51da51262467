"""Finalists answer prompts with real engines: the same text as the trace's, and resumable."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pytest

from entmtp.calibrate import live as live_stage
from entmtp.calibrate.answers import AnswerConfig, plan_groups
from entmtp.calibrate.assemble import Candidates, Clock, assemble
from entmtp.calibrate.collect import TraceConfig, collect_trace
from entmtp.calibrate.finalists import Finalists, static_name
from entmtp.calibrate.live import LiveConfig, LiveStage
from entmtp.calibrate.rehearse import make_folds
from entmtp.calibrate.trace import RankTrace
from entmtp.data import Message, Prompt
from entmtp.engine.questions import Question
from entmtp.measure.paired import Run
from entmtp.scheduler import MadeFor, TreeBank, at_any_length
from entmtp.scheduler.bank import MadeFrom
from made_traces import RISING
from rank_traces import talker, talkers_heads

PROMPTS = [Prompt(f"{place}", "", (Message("user", f"say {place}"),)) for place in range(20)]
ANSWERS = AnswerConfig(temperature=0.4, max_tokens=12, group_size=20)
ALL_ROWS = LiveConfig(1e9)
FINALISTS = Finalists((0, 1), ("hysteresis", "throughput"))


@lru_cache
def questions() -> list[Question]:
    [group] = plan_groups(talker(), PROMPTS, ANSWERS)
    return group


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> RankTrace:
    folder = tmp_path_factory.mktemp("trace")
    heads = talkers_heads("medusa")
    return collect_trace(talker(), heads, PROMPTS, folder / "t", TraceConfig(ANSWERS)).trace


def bank_of(trace: RankTrace) -> TreeBank:
    origin = MadeFrom("prompts", trace.num_rows, ("",), 0.4, 0)
    clock = Clock(RISING_4, at_any_length(RISING_4))
    made_for = MadeFor("target", "heads", "eager", "float32", "a machine")
    return assemble(Candidates.of(trace, RISING_4, 0), clock, made_for, origin)


RISING_4 = replace(RISING, draft_seconds=(0.0, 0.02, 0.04, 0.06, 0.08))


@pytest.fixture
def stage(trace: RankTrace, tmp_path: Path) -> LiveStage:
    bank = bank_of(trace)
    folds = make_folds(trace, bank_of)
    evaluation = Candidates.of(trace, RISING_4, 0).evaluation
    heads = talkers_heads("medusa")
    path = tmp_path / "live.json"
    return LiveStage(talker(), heads, questions(), ANSWERS, bank, folds, evaluation, ALL_ROWS, path)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """All that are made, warm-ups left aside."""
    seen: list[Run] = []

    def in_turn(*args: object) -> list[Run]:
        made = list(real(*args))  # type: ignore[arg-type]
        seen.extend(made)
        return made

    real = live_stage.run_in_turn
    monkeypatch.setattr(live_stage, "run_in_turn", in_turn)
    return seen


def test_every_prompt_is_answered_by_those_whose_turn_it_is_as_in_the_trace(
    stage: LiveStage, runs: list[Run], trace: RankTrace
) -> None:
    told: list[float] = []
    found = stage.run(FINALISTS, told.append)
    assert told == sorted(told)
    assert found.finalists == FINALISTS
    statics = [static_name(0), static_name(1)]
    own = static_name(found.static)
    by_prompt: dict[str, list[Run]] = {}
    for run in runs:
        by_prompt.setdefault(run.prompt_id, []).append(run)
    kinds = [sorted({run.method for run in each}) for each in by_prompt.values()]
    # A quarter of both halves to choose by, the others to compare on.
    assert kinds[:4] == [statics] * 4
    assert kinds.count(statics) == len(found.rounds.choosing) == 4
    assert kinds.count(sorted([own, "hysteresis", "throughput"])) == len(found.rounds.comparing)
    assert len(found.rounds.choosing) + len(found.rounds.comparing) == len(by_prompt) == 20
    first = {each[0].method for each in list(by_prompt.values())[-8:]}
    assert len(first) == 3, "whose turn is first rotates"
    ids = [question.id for question in questions()]
    lengths = dict(zip(ids, np.diff(trace.row_starts).tolist(), strict=True))
    for name, each in by_prompt.items():
        assert len({run.token_ids for run in each}) == 1, "the law"
        assert len(each[0].token_ids) == lengths[name], "and the text is the trace's"


def test_policies_answer_what_their_bank_has_not_seen(
    stage: LiveStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, tuple[str, ...]]] = []

    def ready(own: LiveStage, policies: object, row: int) -> object:
        seen.append((row, tuple(policies)))  # type: ignore[arg-type]
        return real(own, policies, row)  # type: ignore[arg-type]

    banks: list[TreeBank] = []

    def policy(name: str, bank: TreeBank) -> object:
        banks.append(bank)
        return real_policy(name, bank)

    real, real_policy = LiveStage._ready, live_stage.policy_from_bank
    monkeypatch.setattr(LiveStage, "_ready", ready)
    monkeypatch.setattr(live_stage, "policy_from_bank", policy)
    stage.run(FINALISTS)
    assert [len(names) for _, names in seen] == [2, 3, 3]
    for (row, _), fold in zip(seen[1:], stage.folds, strict=True):
        assert row in fold.rows
    assert banks == [fold.bank for fold in stage.folds for _ in range(2)]


def test_time_is_kept(stage: LiveStage, runs: list[Run]) -> None:
    """One prompt for each group of finalists, whatever it takes; nothing behind the time's end."""
    short = replace(stage, config=LiveConfig(1e-6))
    found = short.run(FINALISTS)
    assert len(found.rounds.choosing) == 1
    assert found.rounds.comparing == []
    assert len(runs) == 2


def test_T09_an_interrupted_run_goes_on_and_other_banks_begin_anew(
    stage: LiveStage, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        if len(runs) >= 16:
            raise KeyboardInterrupt

    monkeypatch.setattr(live_stage, "write_done", partial(_write_then, stop))
    with pytest.raises(KeyboardInterrupt):
        stage.run(FINALISTS)
    monkeypatch.undo()
    first = json.loads(stage.path.read_text())
    # Who has begun runs, whatever a new rehearsal says.
    found = stage.run(Finalists((0,), ()))
    assert found.finalists == FINALISTS
    done = json.loads(stage.path.read_text())
    assert done["rounds"][: len(first["rounds"])] == first["rounds"]
    assert len(done["rounds"]) == 20
    assert done["seconds"] > first["seconds"]
    assert stage.run(FINALISTS) == found, "nothing is left to do"
    changed = replace(stage, bank=replace(stage.bank, wide_tree=stage.bank.trees[-1].tree))
    changed.run(Finalists((0, 1), ()))
    assert json.loads(stage.path.read_text())["finalists"]["policies"] == []


def _write_then(stop: object, *args: object) -> None:
    _WRITE(*args)  # type: ignore[arg-type]
    stop()  # type: ignore[operator]


_WRITE = live_stage.write_done


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seconds", -1.0),
        ("seconds", 10**400),
        ("seconds", float("nan")),
        ("rounds", []),
        ("rounds", [[0, {"static 0": ["\ud800", 1, 1]}]]),
        ("finalists", {"statics": [999], "policies": ["best"]}),
    ],
)
def test_T09_a_file_that_anybody_else_changed_is_begun_anew(
    stage: LiveStage, runs: list[Run], name: str, value: object
) -> None:
    finalists = Finalists((0,), ("throughput",))
    stage.run(finalists)
    num_runs = len(runs)
    stage.run(finalists)
    assert len(runs) == num_runs, "nothing is left to do"
    content = json.loads(stage.path.read_text())
    stage.path.write_text(json.dumps(content | {name: value}))
    stage.run(finalists)
    assert len(runs) == 2 * num_runs


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 1}'])
def test_T09_a_file_that_cannot_be_read_is_begun_anew(stage: LiveStage, text: str) -> None:
    stage.path.write_text(text)
    found = stage.run(Finalists((0,), ("throughput",)))
    assert found.rounds.choosing == []
    assert len(found.rounds.comparing) == 20
