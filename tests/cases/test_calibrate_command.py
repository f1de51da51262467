"""`entmtp calibrate` that is repeated, interrupted, given little, or used for something else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

import entmtp.calibrate.answers
from entmtp.calibrate.finalists import Finalists
from entmtp.calibrate.latency_table import LatencyTable, Spread
from entmtp.calibrate.timing import measure_latency
from entmtp.calibrate.work_folder import at_work
from entmtp.cli.app import run_command
from entmtp.measure.paired import Method, Run, Task, run_in_turn
from entmtp.scheduler import read_bank
from entmtp.trees import ROOT
from killed_runs import Fault, kill_in
from training_commands import Capture, refused, write


@pytest.fixture
def command(model: Path, prompts: Path, tmp_path: Path) -> list[str]:
    return calibration(model, prompts, tmp_path / "bank.json")


def calibration(model: Path, prompts: Path, out: Path, *more: str) -> list[str]:
    places = ["--model", str(model), "--heads", str(model.parent / "heads"), "--out", str(out)]
    numbers = ["--dtype", "float32", "--runtime", "eager", "--max-tokens", "12"]
    return ["calibrate", *places, "--prompts", str(prompts), *numbers, *SHORT, *more]


SHORT = ("--timing-seconds", "0", "--batch-size", "1")


def front(bank: Path) -> str:
    """All that does not depend on the clock."""
    text, _, timing = bank.read_text().partition('"timing"')
    assert timing
    return text


def test_T06_a_bank_is_the_same_to_the_byte_apart_from_its_timing(
    model: Path, prompts: Path, tmp_path: Path
) -> None:
    flags = ("--temperature", "0.8", "--seed", "3")
    shuffled = tmp_path / "shuffled.jsonl"
    shuffled.write_text("".join(sorted(prompts.read_text().splitlines(True), reverse=True)))
    for name, file in (("one", prompts), ("two", prompts), ("shuffled", shuffled)):
        assert run_command(calibration(model, file, tmp_path / name, *flags)) == 0
    torch.set_num_threads(4)
    try:
        assert run_command(calibration(model, prompts, tmp_path / "threads", *flags)) == 0
    finally:
        torch.set_num_threads(1)
    names = ("one", "two", "shuffled", "threads")
    # A bank says for how many threads it is; all else that follows from prompts is the same.
    assert '"num_threads": 4' in front(tmp_path / "threads")
    fronts = {front(tmp_path / name).replace('_threads": 4', '_threads": 1') for name in names}
    assert len(fronts) == 1
    assert run_command(calibration(model, prompts, tmp_path / "seed", *flags[:2])) == 0
    assert front(tmp_path / "seed") != front(tmp_path / "one")


@pytest.mark.parametrize("count", [1, 3, 19])
def test_T03_few_prompts_are_said_and_never_make_a_big_tree(
    count: int, model: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("entmtp.calibrate.pipeline.measure_latency", times_by_rows)
    rows = [{"prompt": f"question {place}"} for place in range(count)]
    file = write(tmp_path / "few.jsonl", rows)
    out = tmp_path / "bank.json"
    assert run_command(calibration(model, file, out, "--json")) == 0
    said, err = capsys.readouterr()
    assert f"note: only {count} prompts: what is computed from them is uncertain" in err
    told = json.loads(said.splitlines()[-1])
    assert told["recommended"] == "static"
    bank = read_bank(out)
    bounds = bank.timing.oracle_bounds
    assert bounds["plain"] == bounds["best_static"] <= bounds["bank_perfect"]
    assert f"the bank's static tree (nodes: 1) {bounds['best_static']:.1f};" in said
    assert told["static_num_nodes"] == 1
    gives_up = bounds["fastest_static"] > 1.0005 * bounds["best_static"]
    size = told["fastest_static_num_nodes"]
    assert ("more than the bank's static tree; a bank takes only what is" in said) == gives_up
    assert (f"the fastest candidate on these prompts (nodes: {size}) is" in said) == gives_up
    assert bank.timing.recommended == "static"
    assert bank.best_static == ROOT, "random heads, and nothing is sure"
    for entry in bank.trees:
        value, low, high = entry.mean_acceptance_length
        assert low <= value <= high
        if count < 4:
            assert (low, high) == (1, 1 + entry.tree.depth)
    generate = ["generate", "hello", *calibration(model, file, out)[1:5], "--dtype", "float32"]
    generate += ["--runtime", "eager", "--max-tokens", "12", "--json"]
    assert run_command([*generate, "--bank", str(out)]) == 0
    drafted = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert run_command([*generate, "--policy", "plain"]) == 0
    plain = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["num_draft_tokens"] == 0


def times_by_rows(*args: Any) -> LatencyTable:
    """Times that are longer for more rows of all sequences, whatever else this machine is doing."""
    table = measure_latency(*args)
    size = table.batch_size
    entries = (
        replace(
            entry,
            draft=Spread(*[1e-3 * entry.tree.depth] * 3),
            verify=Spread(*[1e-2 + 1e-3 * size * entry.tree.num_nodes] * 3),
            host=Spread(*[1e-3] * 3),
        )
        for entry in table.entries
    )
    return replace(table, entries=tuple(entries))


FAULTS = {
    "in the answers": Fault("entmtp.calibrate.answers:_hidden_states", 3, "before"),
    "while a group is written": Fault("entmtp.calibrate.files:save_file", 1, "middle"),
    "while the trace is written": Fault("entmtp.calibrate.trace_file:save_file", 1, "middle"),
    "before the times": Fault("entmtp.calibrate.pipeline:measure_latency", 1, "before"),
    "before the bank": Fault("entmtp.calibrate.pipeline:write_bank", 1, "before"),
    "behind the bank": Fault("entmtp.calibrate.pipeline:write_bank", 1, "behind"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_T09_killed_anywhere_and_again_a_bank_is_the_same(
    name: str, command: Sequence[str], model: Path, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bank.json"
    out.write_text("old")
    kill_in(partial(run_command, list(command)), FAULTS[name])
    if name != "behind the bank":
        assert out.read_text() == "old"
    assert run_command(command) == 0
    whole = tmp_path / "whole.json"
    assert run_command(calibration(model, prompts, whole)) == 0
    assert front(out) == front(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bank.json", "whole.json"]


def test_T09_ctrl_c_is_130_and_keeps_what_is_done(
    command: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("entmtp.calibrate.pipeline.measure_latency", stop)
    assert run_command(command) == 130
    assert not (tmp_path / "bank.json").exists()
    monkeypatch.undo()
    monkeypatch.setattr("entmtp.calibrate.collect.answer_group", stop)  # they are there already
    assert run_command(command) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bank.json"]


def test_T08_other_settings_are_said_and_made_anew_if_asked(
    command: Sequence[str], tmp_path: Path, capsys: Capture
) -> None:
    kept = [*command, "--work", str(tmp_path / "work")]
    assert run_command(kept) == 0
    changed = [*kept, "--max-tokens", "9"]
    capsys.readouterr()
    assert "max_tokens 12 -> 9" in refused(changed, capsys)
    assert run_command([*changed, "--restart"]) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--out", "no/such/bank.json"], "--out no/such/bank.json: there is no folder"),
        (["--out", "."], "--out . is a folder; give the name of a file"),
        (["--report", "page.pdf"], "the report page.pdf ends in .pdf; give a folder or a name"),
        (["--out", "b.json", "--report", "b.html"], "b.html would write its numbers over the bank"),
        (["--live-seconds", "nan"], "--live-seconds nan: give a number from 0 up"),
        (["--timing-seconds", "-1"], "--timing-seconds -1.0: give a number from 0 up"),
        (["--batch-size", "0"], "--batch-size 0: give counts from 1 to 256 with commas between"),
        (["--batch-size", "8,many"], "--batch-size 8,many: give counts from 1 to 256"),
        (["--batch-size", ""], "--batch-size : give counts from 1 to 256"),
        (["--batch-size", "257"], "--batch-size 257: give counts from 1 to 256"),
        (["--temperature", "-1"], "temperature"),
        (["--max-tokens", "1"], "max_tokens"),
        (["--heads", "none"], "no draft heads at none"),
        (["--prompts", "none.jsonl"], "no prompts 'none.jsonl'"),
        (["--limit", "0"], "a limit of 0 prompts leaves nothing"),
    ],
)
def test_what_cannot_work_is_one_line_and_leaves_nothing(
    flags: list[str], said: str, command: Sequence[str], tmp_path: Path, capsys: Capture
) -> None:
    assert said in refused([*command, *flags], capsys)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--out x.html --report x.html", "the report x.html would be written over the bank x.html"),
        ("--prompts p.json --report p.html", "--report p.json would overwrite what --prompts p.js"),
        ("--prompts p.json --out p.json", "--out p.json would overwrite what --prompts p.json"),
        ("--prompts p.json --out link", "--out link would overwrite what --prompts p.json reads"),
        ("--out {model}/config.json", "/config.json would overwrite what --model {model} reads"),
        ("--out {heads}/heads.json", "/heads.json would overwrite what --heads {heads} reads"),
        ("--out new --work new", "--out new is to be a file and --work new a folder"),
        ("--out new --report new", "--out new is to be a file and --report new a folder"),
        ("--out work/made_with.json --work work", "has the name of a file of unfinished work in"),
        ("--work p.json", "--work p.json is a file; give the name of a folder"),
        ("--out in-the-way.json", "in-the-way.json.work is a file; give the name of a folder"),
        ("--report a-file", "the report a-file is a file; give a folder or a name.html"),
        ("--report no/such/folder", "--report no/such/folder: there is no folder"),
        ("--report work/n.html", "--report work/n.json is a folder; give another name"),
    ],
)
def test_outputs_that_would_be_in_the_way_are_said_before_any_work(
    flags: str,
    said: str,
    command: Sequence[str],
    model: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "p.json", [{"prompt": "a question"}])
    for name in ("a-file", "in-the-way.json.work"):
        (tmp_path / name).write_text("a file")
    (tmp_path / "link").symlink_to("p.json")
    (tmp_path / "work/n.json").mkdir(parents=True)
    places = {"model": model, "heads": model.parent / "heads"}
    before = everything(tmp_path, model.parent)
    line = refused([*command, *flags.format(**places).split()], capsys)
    assert said.format(**places) in line
    assert everything(tmp_path, model.parent) == before


def everything(*folders: Path) -> dict[Path, bytes | None]:
    """What lies in folders; None for a folder."""
    found = (path for folder in folders for path in folder.rglob("*"))
    return {path: path.read_bytes() if path.is_file() else None for path in found}


def test_a_folder_is_a_folder_whatever_its_name(command: Sequence[str], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "page.html").mkdir()
    assert run_command([*command, "--report", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html" / "calibration.html").is_file()
    assert not (tmp_path / ".page.html").exists()


def test_T09_a_second_calibration_is_refused_and_the_first_has_its_work(
    command: Sequence[str], tmp_path: Path, capsys: Capture
) -> None:
    work = tmp_path / "bank.json.work"
    with at_work(None, tmp_path / "bank.json"):
        (work / "answers-00000.safetensors").write_text("of the first")
        line = refused([*command, "--restart"], capsys)
        assert f"another calibration is at work in {work}; wait until it has ended" in line
        assert (work / "answers-00000.safetensors").read_text() == "of the first"
        (work / "answers-00000.safetensors").unlink()
    assert run_command(command) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["bank.json"]


def cut_answers(monkeypatch: pytest.MonkeyPatch, num_whole: int) -> None:
    """All answers but some of the first group end with their first token."""

    def cut(*args: Any) -> list[tuple[int, ...]]:
        answers = made(*args)
        kept = [ids[: None if place < num_whole else 1] for place, ids in enumerate(answers)]
        assert sum(len(ids) > 1 for ids in kept) == num_whole
        return kept

    made = entmtp.calibrate.answers._answers
    monkeypatch.setattr("entmtp.calibrate.answers._answers", cut)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_T03_answers_without_a_step_are_counted_and_shared_among_halves(
    count: int, command: Sequence[str], tmp_path: Path, capsys: Capture, monkeypatch: Any
) -> None:
    pytest.importorskip("matplotlib")
    cut_answers(monkeypatch, count)
    assert run_command([*command, "--report", str(tmp_path / "report"), "--json"]) == 0
    said, err = capsys.readouterr()
    assert f"note: only {count} of 8 answers have a second token" in err
    told = json.loads(said.splitlines()[-1])
    assert bool(told["policies"]) == (count > 1)
    assert read_bank(tmp_path / "bank.json").timing.recommended == "static"


def test_T03_nothing_runs_live_where_few_answers_have_a_step(
    model: Path, enough: Path, tmp_path: Path, capsys: Capture, monkeypatch: Any
) -> None:
    cut_answers(monkeypatch, 2)  # of both groups
    out = tmp_path / "bank.json"
    assert run_with_finalists(calibration(model, enough, out, "--live-seconds", "1e6")) == 0
    assert "only 4 of 20 answers" in capsys.readouterr().err
    assert read_bank(out).timing.live == ()


def test_T03_without_any_step_there_is_no_bank_and_others_files_stay(
    command: Sequence[str], tmp_path: Path, capsys: Capture, monkeypatch: Any
) -> None:
    cut_answers(monkeypatch, 0)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("notes")
    line = refused([*command, "--work", str(tmp_path / "work")], capsys)
    assert "all 8 answers end with their first token" in line
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["notes.txt"]
    refused(list(command), capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_a_report_is_a_page_and_its_numbers(
    command: Sequence[str], tmp_path: Path, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "page.html"
    assert run_command([*command, "--report", str(page), "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["report"] == str(page)
    assert set(told["seconds"]) == {"trace", "times", "fit", "judge", "live"}
    numbers = json.loads((tmp_path / "page.json").read_text())
    assert [one["name"] for one in numbers["policies"]] == [one["name"] for one in told["policies"]]
    assert len(numbers["acceptance_by_depth_and_rank"]) == 4
    assert numbers["oracle_bounds"].keys() == told["oracle_bounds"].keys()
    text = page.read_text()
    assert text.count('src="data:image/png;base64,') == 8
    assert numbers["live"] == told["live"] == []
    assert "Nothing was run live, so no policy is recommended." in text
    bounds = numbers["oracle_bounds"]
    size = numbers["static_num_nodes"]
    assert told["static_num_nodes"] == size
    static = f"the bank&#x27;s static tree (nodes: {size}) {bounds['best_static']:.1f}, a perfect"
    assert f"{static} chooser among that and the offered trees {bounds['bank_perfect']:.1f}" in text
    assert "http" not in text, "it stands alone"


@pytest.fixture(scope="session")
def enough(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts, just as many as let finalists run."""
    rows = [{"prompt": f"question {place}"} for place in range(20)]
    return write(tmp_path_factory.mktemp("enough") / "prompts.jsonl", rows)


def run_with_finalists(command: Sequence[str]) -> int:
    """Random heads have no finalists of their own."""
    finalists = Finalists((0, 1), ("ladder", "throughput"))
    with patch("entmtp.calibrate.pipeline.find_finalists", lambda *_: finalists):
        return run_command(list(command))


def killed_among_finalists(command: Sequence[str], call: int) -> None:
    fault = Fault("entmtp.calibrate.live:write_done", call, "before")
    kill_in(partial(run_with_finalists, list(command)), fault)


def test_finalists_run_and_the_clock_decides(
    model: Path, enough: Path, tmp_path: Path, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    out, page = tmp_path / "bank.json", tmp_path / "page.html"
    flags = ("--live-seconds", "1e6", "--report", str(page), "--json")
    assert run_with_finalists(calibration(model, enough, out, *flags)) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    bank = read_bank(out)
    live = bank.timing.live
    assert [one.policy for one in live] == ["static", "static", "ladder", "throughput"]
    assert [one.num_prompts for one in live] == [16, 4, 16, 16]
    assert bank.best_static == bank.trees[live[0].trees[0]].tree
    assert told["recommended"] == bank.timing.recommended
    numbers = json.loads((tmp_path / "page.json").read_text())
    assert numbers["live"] == told["live"]
    assert [one["policy"] for one in told["live"]] == [one.policy for one in live]
    assert set(numbers["looks"]) == {"root_seconds", "read_seconds"}
    assert page.read_text().count('src="data:image/png;base64,') == 9
    alone = tmp_path / "alone.json"
    assert run_with_finalists(calibration(model, enough, alone, "--live-seconds", "0")) == 0
    assert front(alone) == front(out), "the clock changes nothing but the timing"
    said = capsys.readouterr().out
    assert "the fastest static tree" not in said
    for bound in ("best_static", "bank_perfect", "full", "fixed_size"):
        assert f" {read_bank(alone).timing.oracle_bounds[bound]:.1f}" in said, bound
    assert read_bank(alone).timing.live == ()
    assert read_bank(alone).timing.recommended == "static"


def test_random_heads_have_no_finalists(model: Path, enough: Path, tmp_path: Path) -> None:
    out = tmp_path / "bank.json"
    assert run_command(calibration(model, enough, out, "--live-seconds", "1e6")) == 0
    assert read_bank(out).timing.recommended == "static"


def test_T09_killed_among_the_finalists_and_again_no_time_is_measured_twice(
    model: Path, enough: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "bank.json", tmp_path / "work"
    kept = calibration(model, enough, out, "--live-seconds", "1e6", "--work", str(work))
    killed_among_finalists(kept, 7)
    assert not out.exists()
    [path] = work.glob("live-*.json")
    assert len(json.loads(path.read_text())["rounds"]) == 6

    def refuse(*_: object) -> None:
        raise AssertionError("these times are there already")

    answered: list[str] = []

    def in_turn(methods: Sequence[Method], task: Task, *rest: Any) -> Iterator[Run]:
        answered.append(task.prompt_id)
        return run_in_turn(methods, task, *rest)

    monkeypatch.setattr("entmtp.calibrate.pipeline.measure_latency", refuse)
    monkeypatch.setattr("entmtp.calibrate.live.run_in_turn", in_turn)
    assert run_with_finalists(kept) == 0
    assert len(answered) == 20 - 6
    assert [one.num_prompts for one in read_bank(out).timing.live] == [16, 4, 16, 16]
    # They are of one bank: the next one is made of new ones.
    assert not [*work.glob("times-*"), *work.glob("live-*")]
    with pytest.raises(AssertionError, match="these times are there already"):
        run_command(kept)


def test_T09_step_times_of_other_settings_are_measured_anew(
    model: Path, enough: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "bank.json", tmp_path / "work"
    kept = calibration(model, enough, out, "--live-seconds", "1e6", "--work", str(work))
    measured: list[object] = []

    def measure(*args: Any) -> LatencyTable:
        measured.append(args)
        return measure_latency(*args)

    monkeypatch.setattr("entmtp.calibrate.pipeline.measure_latency", measure)
    for number, flags in enumerate((("--timing-seconds", "0.01"), ("--restart",)), start=1):
        killed_among_finalists(kept, 1)
        assert run_command([*kept, "--live-seconds", "0", *flags]) == 0
        assert len(measured) == number


def test_each_batch_size_has_its_times_and_its_best_tree(
    command: Sequence[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("entmtp.calibrate.pipeline.measure_latency", times_by_rows)
    page = tmp_path / "page.html"
    flags = ("--batch-size", "4, 2,2", "--report", str(page), "--json")
    assert run_command([*command, *flags]) == 0
    said = capsys.readouterr().out
    timing = read_bank(tmp_path / "bank.json").timing
    assert [one.batch_size for one in timing.step_times[0].batches] == [2, 4]
    for batch in timing.step_times[0].batches:
        assert batch.times.verify(3) == pytest.approx(1e-2 + 1e-3 * 3 * batch.batch_size, rel=1e-5)
    assert len(timing.best_in_company) == 3
    told = json.loads(said.splitlines()[-1])["static_num_nodes_by_batch_size"]
    assert list(told) == ["1", "2", "4"]
    assert f"by batch size: 1: {told['1']}, 2: {told['2']}, 4: {told['4']}" in said
    batches = json.loads((tmp_path / "page.json").read_text())["batches"]
    assert [one["best"]["num_nodes"] for one in batches] == list(told.values())
    plain = [one["fastest_by_size"][0]["tokens_per_second"] for one in batches]
    # A step takes 11 ms, 12 ms or 14 ms, and one more of the host, for so many tokens.
    assert plain == pytest.approx([1 / 0.013, 2 / 0.014, 4 / 0.016], rel=0.1)
    assert "The best tree by batch size" in page.read_text()


def test_T09_killed_between_two_batch_sizes_only_the_second_is_timed_again(
    command: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = [*command, "--batch-size", "2,3", "--work", str(tmp_path / "work")]
    fault = Fault("entmtp.calibrate.pipeline:measure_latency", 3, "before")
    kill_in(partial(run_command, kept), fault)
    measured: list[int] = []

    def measure(*args: Any) -> LatencyTable:
        measured.append(args[4].batch_size)
        return measure_latency(*args)

    monkeypatch.setattr("entmtp.calibrate.pipeline.measure_latency", measure)
    assert run_command(kept) == 0
    assert measured == [3]
    assert not [*(tmp_path / "work").glob("times-*")]
    # Other batch sizes are no other work: what they have in common is not repeated either.
    kill_in(partial(run_command, kept), Fault("entmtp.calibrate.pipeline:write_bank", 1, "before"))
    measured.clear()
    assert run_command([*kept, "--batch-size", "3,5"]) == 0
    assert measured == [5]
    assert not [*(tmp_path / "work").glob("times-*")]


@pytest.mark.parametrize("name", ["write_latency", "write_made_with"])
def test_T09_no_kill_leaves_step_times_with_a_note_of_others(
    name: str, model: Path, enough: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, work = tmp_path / "bank.json", tmp_path / "work"
    kept = calibration(model, enough, out, "--live-seconds", "1e6", "--work", str(work))
    killed_among_finalists(kept, 1)
    other = [*kept, "--timing-seconds", "0.01"]
    fault = Fault(f"entmtp.calibrate.timed_work:{name}", 1, "behind")
    kill_in(partial(run_with_finalists, other), fault)
    measured: list[object] = []

    def measure(*args: Any) -> LatencyTable:
        measured.append(args)
        return measure_latency(*args)

    monkeypatch.setattr("entmtp.calibrate.pipeline.measure_latency", measure)
    assert run_command([*kept, "--live-seconds", "0"]) == 0
    assert len(measured) == 1
