"""Banks on the command line, and the decisions of a run written down and shown."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bank_policies import bank_for
from entmtp.cli.app import run_command
from entmtp.cli.options import LoadOptions
from entmtp.cli.session import open_heads, open_target
from entmtp.engine.made_for import made_for
from entmtp.scheduler import MadeFor, write_bank
from refusals import one_line

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def made(model_folder: Path, hydra_folder: Path) -> MadeFor:
    target = open_target(LoadOptions(str(model_folder), "float32"))
    return made_for(target, open_heads(hydra_folder, target))


@pytest.fixture
def bank(tmp_path: Path, made: MadeFor) -> Path:
    path = tmp_path / "bank.json"
    write_bank(bank_for(made), path)
    return path


@pytest.fixture
def command(model_folder: Path, hydra_folder: Path) -> list[str]:
    given = ["--model", str(model_folder), "--heads", str(hydra_folder), "--dtype", "float32"]
    return ["generate", "hello", *given, "--max-tokens", "24", "--json"]


def answer(capsys: Capture, arguments: list[str]) -> dict[str, object]:
    assert run_command(arguments) == 0
    report: dict[str, object] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


@pytest.mark.parametrize(
    ("flags", "method"),
    [
        ([], "hydra-throughput"),
        (["--policy", "throughput", "--no-adapt"], "hydra-throughput"),
        (["--policy", "per-step"], "hydra-per-step"),
        (["--policy", "static"], "hydra-static"),
        (["--policy", "ladder"], "hydra-ladder"),
        (["--policy", "hysteresis"], "hydra-hysteresis"),
        (["--policy", "ladder", "--as-published"], "hydra-ladder-as-published"),
        (["--policy", "hysteresis", "--as-published"], "hydra-hysteresis-as-published"),
    ],
)
def test_every_policy_of_a_bank_says_what_plain_says(
    capsys: Capture, bank: Path, command: list[str], flags: list[str], method: str
) -> None:
    report = answer(capsys, [*command, "--bank", str(bank), *flags])
    assert report["method"] == method
    plain = answer(capsys, [*command, "--policy", "plain"])
    assert report["token_ids"] == plain["token_ids"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "ladder"], "policy ladder needs a bank of trees; pass --bank FILE"),
        (["--policy", "per-step"], "policy per-step needs a bank of trees; pass --bank FILE"),
        (["--bank", "b", "--policy", "plain"], "--bank b and --policy plain contradict each other"),
        (["--bank", "b", "--policy", "random"], "--bank b and --policy random contradict"),
        (["--bank", "b", "--tree", "chain-2"], "--tree chain-2 and --bank b contradict"),
        (["--bank", "b"], "there is no bank b; make one with `entmtp calibrate`"),
        (["--policy", "static", "--as-published"], "--as-published means nothing to policy static"),
        (["--no-adapt"], "--no-adapt means nothing to policy static; give --bank FILE and"),
        (["--trace-out", "no/such/run.jsonl"], "for --trace-out; make it first"),
    ],
)
def test_contradictions(capsys: Capture, command: list[str], flags: list[str], said: str) -> None:
    assert said in one_line([*command, *flags], capsys)


@pytest.mark.parametrize("name", ["target", "heads", "number_format", "machine"])
def test_T07_a_bank_of_something_else_is_refused_by_name(
    capsys: Capture, tmp_path: Path, made: MadeFor, command: list[str], name: str
) -> None:
    path = tmp_path / "other.json"
    write_bank(bank_for(replace(made, **{name: "another"})), path)
    trace = tmp_path / "run.jsonl"
    err = one_line([*command, "--bank", str(path), "--trace-out", str(trace)], capsys)
    spoken = name.replace("_", " ")
    assert f"{path} was made for {spoken} another, not {getattr(made, name)}; make one" in err
    assert not trace.exists()


def test_T07_a_bank_of_other_threads_is_refused(
    capsys: Capture, tmp_path: Path, made: MadeFor, command: list[str]
) -> None:
    path, more = tmp_path / "other.json", made.num_threads + 1
    write_bank(bank_for(replace(made, num_threads=more)), path)
    err = one_line([*command, "--bank", str(path)], capsys)
    assert f"{path} was made for num threads {more}, not {made.num_threads}; make one" in err


def test_T07_a_broken_bank_is_one_line(capsys: Capture, bank: Path, command: list[str]) -> None:
    bank.write_text(bank.read_text()[:-40])
    assert f"{bank} is broken (" in one_line([*command, "--bank", str(bank)], capsys)


def test_a_run_is_written_down_and_shown(
    capsys: Capture, tmp_path: Path, bank: Path, command: list[str]
) -> None:
    path = tmp_path / "run.jsonl"
    command = [*command, "--bank", str(bank), "--policy", "per-step", "--n", "2"]
    report = answer(capsys, [*command, "--trace-out", str(path)])
    assert report == {**answer(capsys, command), **_timing(report)}
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["schema_version"] == 1
    assert lines[0]["method"] == "hydra-per-step"
    choices = report["choices"]
    assert isinstance(choices, list)
    for index, choice in enumerate(choices):
        own = [line for line in lines[1:] if line["sample"] == index]
        assert [i for line in own for i in line["token_ids"]] == choice["token_ids"]
        assert "".join(line["text"] for line in own) == choice["text"]
        steps = [line for line in own if line["step"] is not None]
        assert len(steps) == choice["num_steps"]
        assert all(line["entropy"] is not None for line in steps)
        assert sum(line["num_nodes"] - 1 for line in steps) == choice["num_draft_tokens"]

    assert run_command(["trace", "show", str(path), "--sample", "1", "--json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(choices[1]["text"])
    shown = json.loads(out.splitlines()[-1])
    assert shown["num_steps"] == choices[1]["num_steps"]
    assert sum(shown["num_steps_by_rows"].values()) == shown["num_steps"]
    for name, start in (("run.png", b"\x89PNG"), ("run.html", b"<!doctype html>")):
        picture = tmp_path / name
        assert run_command(["trace", "show", str(path), "--out", str(picture)]) == 0
        assert capsys.readouterr().out == ""
        assert picture.read_bytes().startswith(start)
    page = (tmp_path / "run.html").read_text()
    assert "<svg" in page
    assert "hydra-per-step" in page


def _timing(report: dict[str, object]) -> dict[str, object]:
    """What differs from run to run."""
    return {"choices": report["choices"]}


def test_a_terminal_gets_colours_and_nothing_it_might_obey(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.jsonl"
    step = {"sample": 0, "step": 0, "num_nodes": 9, "num_accepted": 0, "token_ids": [3]}
    lines = [{"schema_version": 1}, {**step, "text": "a\x1b[2Jb"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run_command(["trace", "show", str(path)]) == 0
    assert capsys.readouterr().out.startswith("\x1b[48;5;71;38;5;255ma[2Jb\x1b[0m\n")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run_command(["trace", "show", str(path)]) == 0
    assert capsys.readouterr().out.startswith("a[2Jb\n")


STEP = {
    "sample": 0,
    "step": 0,
    "num_nodes": 9,
    "num_accepted": 1,
    "expected_accepted": 0.5,
    "entropy": 1.0,
    "token_ids": [3, 4],
    "text": "a",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 10**400) for name in STEP if name not in ("step", "token_ids", "text")),
        *((name, float("inf")) for name in ("sample", "num_nodes", "num_accepted", "entropy")),
        *((name, float("nan")) for name in ("expected_accepted", "entropy")),
        *((name, -5) for name in ("sample", "num_nodes", "num_accepted", "expected_accepted")),
        ("entropy", -5),
        ("num_nodes", 0),
        ("num_nodes", 10**9),
        ("num_nodes", "9"),
        ("num_nodes", 1),  # and one draft accepted
        ("num_accepted", 0.5),
        ("sample", True),
        ("text", "\ud800"),
        ("text", None),
        ("token_ids", 3),
        ("token_ids", "34"),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_step_that_cannot_be_is_one_line(
    capsys: Capture, tmp_path: Path, name: str, value: object, flags: tuple[str, ...]
) -> None:
    path = tmp_path / "run.jsonl"
    for step in (STEP, STEP | {name: value}):
        lines = [{"schema_version": 1}, step]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        show = ["trace", "show", str(path), *flags]
        if step is STEP:
            assert run_command(show) == 0
            capsys.readouterr()
        else:
            assert f"{path}:2 is no step of a run (" in one_line(show, capsys)


def test_what_cannot_be_shown(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    show = ["trace", "show", str(path)]
    assert "cannot read" in one_line(show, capsys)
    path.write_text('{"schema_version": 1}\n')
    assert "has no answer 0; it has none" in one_line(show, capsys)
    path.write_text(
        '{"schema_version": 1}\n{"sample": 0, "step": null, "token_ids": [3], "text": "a"}\n'
    )
    assert "has no steps to draw" in one_line([*show, "--out", str(tmp_path / "a.png")], capsys)
    line = one_line([*show, "--out", str(tmp_path / "a.gif")], capsys)
    assert "ends in '.gif'; give a name in .png or .html" in line
    assert not (tmp_path / "a.gif").exists()
