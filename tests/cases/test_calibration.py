"""Calibration that is repeated, interrupted, given little, or given something else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from draft_heads import random_heads
from entmtp.calibrate.collect import TraceConfig, collect_trace
from entmtp.calibrate.work_folder import at_work
from entmtp.data import Message, Prompt
from entmtp.errors import ArtefactError, BadInput, TreeError
from entmtp.trees import chain
from killed_runs import Fault, kill_in
from rank_traces import ANSWERS, PROMPTS, collect, talker

SHORT = replace(ANSWERS, max_tokens=12, group_size=2)
"""Three groups of two rows."""
CONFIG = TraceConfig(replace(SHORT, temperature=0.5))


def calibrate(out: Path, config: TraceConfig = CONFIG, kind: str = "hydra++") -> None:
    target = talker()
    collect(target, random_heads(target, kind), out, config)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_T06_a_trace_is_the_same_to_the_byte(tmp_path: Path, temperature: float) -> None:
    config = TraceConfig(replace(SHORT, temperature=temperature))
    for name in ("first", "second"):
        calibrate(tmp_path / name, config)
    torch.set_num_threads(4)
    try:
        calibrate(tmp_path / "threads", config)
    finally:
        torch.set_num_threads(1)
    shuffled = [PROMPTS[place] for place in (3, 0, 5, 1, 4, 2)]
    target = talker()
    collect(target, random_heads(target, "hydra++"), tmp_path / "shuffled", config, shuffled)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4, "no work is left behind"
    assert len({file.read_bytes() for file in files}) == 1


def test_T06_a_seed_draws_and_a_prompt_counts_once(tmp_path: Path) -> None:
    calibrate(tmp_path / "one")
    other = TraceConfig(replace(CONFIG.answers, seed=1))
    calibrate(tmp_path / "other", other)
    assert (tmp_path / "one").read_bytes() != (tmp_path / "other").read_bytes()
    target = talker()
    with pytest.warns(UserWarning, match="only 6 prompts"):
        collect_trace(
            target, random_heads(target, "hydra++"), [*PROMPTS, *PROMPTS], tmp_path / "1", CONFIG
        )
    assert (tmp_path / "one").read_bytes() == (tmp_path / "1").read_bytes()


FAULTS = {
    "in the first answers": Fault("entmtp.calibrate.answers:_hidden_states", 1, "before"),
    "in later answers": Fault("entmtp.calibrate.answers:_hidden_states", 4, "before"),
    "while a group is written": Fault("entmtp.calibrate.files:save_file", 3, "middle"),
    "behind a group": Fault("entmtp.calibrate.files:save_file", 2, "behind"),
    "while a draft is written": Fault("entmtp.calibrate.files:save_file", 8, "middle"),
    "while the trace is written": Fault("entmtp.calibrate.trace_file:save_file", 1, "middle"),
    "behind the trace": Fault("entmtp.calibrate.collect:write_trace", 1, "behind"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_T09_killed_anywhere_and_again_a_trace_is_the_same(tmp_path: Path, name: str) -> None:
    out, whole = tmp_path / "run" / "trace", tmp_path / "whole"
    out.parent.mkdir()
    out.write_bytes(b"old")
    kill_in(partial(calibrate, out), FAULTS[name])
    if name != "behind the trace":
        assert out.read_bytes() == b"old"
    assert "made_with.json" in {file.name for file in out.with_name("trace.work").iterdir()}
    calibrate(out)
    calibrate(whole)
    assert out.read_bytes() == whole.read_bytes()
    assert not out.with_name("trace.work").exists()


def test_T09_finished_groups_are_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One folder of work serves several heads: the target answers once."""
    work = TraceConfig(CONFIG.answers, work=tmp_path / "work")
    calibrate(tmp_path / "one", work)

    def refuse(*_: object) -> None:
        raise AssertionError("these answers are there already")

    monkeypatch.setattr("entmtp.calibrate.collect.answer_group", refuse)
    calibrate(tmp_path / "again", work)
    calibrate(tmp_path / "medusa", work, "medusa")
    monkeypatch.undo()
    calibrate(tmp_path / "alone", CONFIG, "medusa")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "one").read_bytes()
    assert (tmp_path / "alone").read_bytes() == (tmp_path / "medusa").read_bytes()


CHANGES: dict[str, Callable[[TraceConfig], TraceConfig]] = {
    "temperature 0.5 -> 0.7": lambda c: replace(c, answers=replace(c.answers, temperature=0.7)),
    "max_tokens 12 -> 11": lambda c: replace(c, answers=replace(c.answers, max_tokens=11)),
}


@pytest.mark.parametrize("words", CHANGES)
def test_T08_work_with_other_settings_is_said_and_made_anew_if_asked(
    tmp_path: Path, words: str
) -> None:
    work = replace(CONFIG, work=tmp_path / "work")
    calibrate(tmp_path / "trace", work)
    before = (tmp_path / "trace").read_bytes()
    changed = CHANGES[words](work)
    with pytest.raises(ArtefactError, match=rf"work belongs to a run with.*\({words}\).*--restart"):
        calibrate(tmp_path / "trace", changed)
    assert (tmp_path / "trace").read_bytes() == before
    calibrate(tmp_path / "trace", replace(changed, restart=True))
    assert (tmp_path / "trace").read_bytes() != before


def test_T08_work_with_other_prompts_or_another_model_is_said(tmp_path: Path) -> None:
    work = replace(CONFIG, work=tmp_path / "work")
    calibrate(tmp_path / "trace", work)
    for target, prompts, words in (
        (talker(), PROMPTS[1:], "num_prompts 6 -> 5, prompts .* -> "),
        (talker(seed=1), PROMPTS, "model .* -> "),
    ):
        heads = random_heads(target, "hydra++")
        with pytest.raises(ArtefactError, match=f"other data or settings .{words}"):
            collect(target, heads, tmp_path / "other", work, prompts)


@pytest.mark.parametrize("note", [None, "", "[]"])
def test_T09_work_that_nothing_is_known_of_is_not_used(tmp_path: Path, note: str | None) -> None:
    work = replace(CONFIG, work=tmp_path / "work")
    calibrate(tmp_path / "trace", work)
    made_with = tmp_path / "work" / "made_with.json"
    made_with.unlink() if note is None else made_with.write_text(note)
    other = replace(work, answers=replace(work.answers, seed=7))
    for config in (work, other):
        with pytest.raises(ArtefactError, match=r"work has answers-00000.*no readable made_with"):
            calibrate(tmp_path / "trace", config)
    calibrate(tmp_path / "trace", replace(other, restart=True))
    calibrate(tmp_path / "whole", replace(other, work=None))
    assert (tmp_path / "trace").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("call", [1, 9, 10, 11])
def test_T09_killed_while_cleaning_up_nothing_of_it_is_used_by_another_run(
    tmp_path: Path, call: int
) -> None:
    out, whole = tmp_path / "trace", tmp_path / "whole"
    fault = Fault("entmtp.calibrate.work_folder:_remove", call, "behind")
    kill_in(partial(calibrate, out), fault)
    other = TraceConfig(replace(CONFIG.answers, temperature=0.7, seed=7))
    calibrate(whole, other)
    is_some_left = call < 9
    if is_some_left:
        with pytest.raises(ArtefactError, match=r"temperature 0.5 -> 0.7"):
            calibrate(out, other)
    calibrate(out, replace(other, restart=is_some_left))
    assert out.read_bytes() == whole.read_bytes()
    assert not out.with_name("trace.work").exists()


def test_T09_files_of_others_in_the_work_folder_stay(tmp_path: Path) -> None:
    others = {"notes.txt", "bank.json", "answers-1.safetensors", "kept"}
    for folder in (tmp_path / "work", tmp_path / "trace.work"):
        (folder / "kept").mkdir(parents=True)
        for name in others - {"kept"}:
            (folder / name).write_text(name)
    work = replace(CONFIG, work=tmp_path / "work")
    calibrate(tmp_path / "trace", work)
    changed = replace(work, answers=replace(work.answers, seed=7), restart=True)
    calibrate(tmp_path / "trace", changed)
    assert others < {path.name for path in (tmp_path / "work").iterdir()}
    calibrate(tmp_path / "trace")
    assert others == {path.name for path in (tmp_path / "trace.work").iterdir()}


def test_T09_a_folder_of_the_users_stays_even_empty(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    work = replace(CONFIG, work=tmp_path / "work")
    target = talker()
    long = Prompt("long", "", (Message("user", "x" * 300),))
    with pytest.raises(BadInput, match="none of 1 prompts"):
        collect_trace(target, random_heads(target, "hydra"), [long], tmp_path / "trace", work)
    assert list(tmp_path.iterdir()) == [tmp_path / "work"]
    assert list((tmp_path / "work").iterdir()) == []


def test_T09_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    target = talker()
    with at_work(None, tmp_path / "trace"), pytest.raises(BadInput, match="another calibration is"):
        collect_trace(target, random_heads(target, "hydra"), PROMPTS, tmp_path / "trace")
    calibrate(tmp_path / "trace")


def test_T09_a_broken_group_is_named(tmp_path: Path) -> None:
    work = replace(CONFIG, work=tmp_path / "work")
    calibrate(tmp_path / "trace", work)
    group = tmp_path / "work" / "answers-00001.safetensors"
    group.write_bytes(group.read_bytes()[:-7])
    with pytest.raises(ArtefactError, match=r"answers-00001.safetensors is broken .*delete it"):
        calibrate(tmp_path / "trace", work)


@pytest.mark.parametrize("count", [1, 3])
def test_T03_few_prompts_are_said_and_make_a_trace(tmp_path: Path, count: int) -> None:
    target = talker()
    stored = collect(
        target, random_heads(target, "hydra"), tmp_path / "trace", CONFIG, PROMPTS[:count]
    )
    assert stored.trace.num_rows == count


def test_T05_nothing_to_answer_leaves_nothing(tmp_path: Path) -> None:
    target = talker()
    long = Prompt("long", "", (Message("user", "x" * 300),))
    with pytest.raises(BadInput, match="none of 1 prompts has 1 to 255 tokens"):
        collect_trace(target, random_heads(target, "hydra"), [long], tmp_path / "trace")
    config = replace(CONFIG, wide_tree=chain(9))
    with pytest.raises(TreeError, match="9 deep but there are 4 draft heads"):
        collect_trace(target, random_heads(target, "hydra"), PROMPTS, tmp_path / "trace", config)
    assert list(tmp_path.iterdir()) == []
