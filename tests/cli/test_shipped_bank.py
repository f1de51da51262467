"""A bank that ships with heads is used without being named, where it fits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bank_policies import bank_for
from entmtp.cli.app import run_command
from entmtp.engine.made_for import made_for
from entmtp.engine.shipped_bank import BANK_NAMES, KIND_NAME
from entmtp.heads import load_heads
from entmtp.scheduler import MadeFor, write_bank
from entmtp.target.load import load_target
from refusals import one_line

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def made(model_folder: Path, hydra_folder: Path) -> MadeFor:
    target = load_target(str(model_folder), "float32", "cpu")
    return made_for(target, load_heads(hydra_folder, target))


@pytest.fixture
def command(
    model_folder: Path, hydra_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> list[str]:
    """The heads are shipped ones here."""
    shipped = tmp_path / "packaged" / "hydra"
    shipped.parent.mkdir()
    shipped.symlink_to(hydra_folder)
    monkeypatch.setattr("entmtp.engine.shipped_bank.PACKAGED", shipped.parent)
    names = tuple(str(tmp_path / name) for name in BANK_NAMES)
    monkeypatch.setattr("entmtp.engine.shipped_bank.BANK_NAMES", names)
    kind_name = str(tmp_path / KIND_NAME)
    monkeypatch.setattr("entmtp.engine.shipped_bank.KIND_NAME", kind_name)
    monkeypatch.setattr("entmtp.heads.format.PACKAGED", shipped.parent)
    places = ["generate", "hello", "--model", str(model_folder), "--heads", "hydra"]
    return [*places, "--dtype", "float32", "--runtime", "eager", "--max-tokens", "16", "--json"]


def ship(
    folder: Path, made: MadeFor, recommended: str = "throughput", name: str = BANK_NAMES[0]
) -> None:
    bank = bank_for(made)
    timing = replace(bank.timing, recommended=recommended)
    write_bank(replace(bank, timing=timing), folder / name)


def method(capsys: Capture, command: list[str]) -> tuple[str, str]:
    """Its name, and what stood on standard error."""
    assert run_command(command) == 0
    out, err = capsys.readouterr()
    return json.loads(out.splitlines()[-1])["method"], err


def test_without_one_all_is_as_before(capsys: Capture, command: list[str]) -> None:
    assert method(capsys, command)[0] == "hydra-static"
    said = one_line([*command, "--policy", "throughput"], capsys)
    assert "policy throughput needs a bank of trees; pass --bank FILE" in said


@pytest.mark.parametrize("name", ["throughput", "per-step", "hysteresis", "static"])
def test_the_recommended_policy_is_the_default(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor, name: str
) -> None:
    ship(tmp_path, made, name)
    found, err = method(capsys, command)
    assert found == f"hydra-{name}"
    assert "note:" not in err
    assert method(capsys, [*command, "--policy", "ladder"])[0] == "hydra-ladder"
    assert method(capsys, [*command, "--policy", "plain"])[0] == "plain"
    assert method(capsys, [*command, "--tree", "chain-2"])[0] == "hydra-static"
    typical = [*command, "--acceptance", "typical"]
    assert method(capsys, typical)[0] == "hydra-static"


def test_a_recommended_static_tree_is_the_banks(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    ship(tmp_path, made, "static")
    assert run_command(command) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["max_num_nodes"] == 9
    assert bank_for(made).best_static.num_nodes == 9


def test_the_first_that_was_made_for_the_runtime_is_used(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    ship(tmp_path, replace(made, runtime="another"), "per-step")
    ship(tmp_path, made, "hysteresis", BANK_NAMES[1])
    assert method(capsys, command)[0] == "hydra-hysteresis"
    ship(tmp_path, made, "per-step")
    assert method(capsys, command)[0] == "hydra-per-step"


def test_another_machines_is_used_with_a_note(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    ship(tmp_path, replace(made, machine="an abacus"))
    found, err = method(capsys, command)
    assert found == "hydra-throughput"
    assert "note: trees are chosen by step times of another machine (an abacus)" in err


def test_that_of_other_threads_is_used_with_a_note(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    ours = made.num_threads
    ship(tmp_path, replace(made, num_threads=ours + 1))
    found, err = method(capsys, command)
    assert found == "hydra-throughput"
    assert f"by step times of this machine with {ours + 1} threads, not {ours}; `entmtp" in err
    ship(tmp_path, replace(made, num_threads=0))  # made before banks said so
    assert "note:" not in method(capsys, command)[1]


@pytest.mark.parametrize("name", ["target", "heads", "runtime", "number_format"])
def test_T07_one_for_something_else_is_left_alone_or_refused(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor, name: str
) -> None:
    ship(tmp_path, replace(made, **{name: "another"}))
    found, err = method(capsys, command)
    assert found == "hydra-static"
    assert "note:" not in err
    said = one_line([*command, "--policy", "throughput"], capsys)
    words = f"the bank that ships with these heads was made for {name.replace('_', ' ')} another"
    assert words in said


def test_T07_one_that_merely_lies_beside_heads_is_none(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor, hydra_folder: Path
) -> None:
    ship(tmp_path, made)
    beside = [str(hydra_folder) if word == "hydra" else word for word in command]
    assert method(capsys, beside)[0] == "hydra-static"


def test_T07_a_broken_one_is_one_line(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    ship(tmp_path, made)
    (tmp_path / "bank.json").write_text("{")
    assert "bank.json is broken (" in one_line(command, capsys)


def test_a_bank_for_a_kind_of_text_is_used_by_name(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    ship(tmp_path, made, "throughput")
    ship(tmp_path, replace(made, machine="another machine"), "ladder", KIND_NAME.format("code"))
    assert method(capsys, command)[0] == "hydra-throughput"
    named = [*command, "--bank", "code"]
    found, err = method(capsys, named)
    assert found == "hydra-ladder"
    assert "another machine" in err
    assert method(capsys, [*named, "--policy", "static"])[0] == "hydra-static"
    assert "--policy plain contradict" in one_line([*named, "--policy", "plain"], capsys)


def test_a_bank_for_a_kind_that_is_missing_or_does_not_fit_is_refused(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    named = [*command, "--bank", "maths"]
    assert "a bank for maths comes with shipped heads only" in one_line(named, capsys)
    ship(tmp_path, replace(made, runtime="openvino"), "ladder", KIND_NAME.format("maths"))
    assert "openvino" in one_line(named, capsys)


def test_bench_takes_a_bank_for_a_kind_of_text(
    capsys: Capture, command: list[str], tmp_path: Path, made: MadeFor
) -> None:
    (tmp_path / "packaged" / "medusa").symlink_to(tmp_path / "packaged" / "hydra")
    model = command[command.index("--model") + 1]
    bench = ["bench", "--model", model, "--dtype", "float32", "--runtime", "eager", "--json"]
    bench += ["--prompts", "packaged", "--limit", "1", "--max-tokens", "4"]
    bench += ["--methods", "plain,entmtp-tau", "--bank-hydra", "chat"]
    assert "a bank for chat comes with shipped heads only" in one_line(bench, capsys)
    ship(tmp_path, made, name=KIND_NAME.format("chat"))
    assert run_command(bench) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [each["name"] for each in result["methods"]] == ["plain", "entmtp-tau"]
