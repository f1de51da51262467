"""No command writes over what it reads, or one output over another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entmtp.cli.places import Place, check_overwrites, given, tree_files
from entmtp.errors import BadInput
from refusals import Capture, one_line

COMMANDS = {
    "bench and its prompts": (
        "bench {model} --prompts f.jsonl --out f.jsonl",
        "--out f.jsonl would overwrite what --prompts f.jsonl reads",
    ),
    "bench and a bank": (
        "bench {model} --bank-hydra f.jsonl --out ./f.jsonl",
        "--out f.jsonl would overwrite what --bank-hydra f.jsonl reads",
    ),
    "bench and a folder": ("bench {model} --out d", "--out d is a folder; give the name of a file"),
    "generate and its bank": (
        "generate x {model} --bank f.jsonl --trace-out f.jsonl",
        "--trace-out f.jsonl would overwrite what --bank f.jsonl reads",
    ),
    "generate and a hard link": (
        "generate x {model} --bank f.jsonl --trace-out hard",
        "--trace-out hard would overwrite what --bank f.jsonl reads",
    ),
    "generate and its tree": (
        "generate x {model} --tree f.py:best --trace-out f.py",
        "--trace-out f.py would overwrite what --tree f.py reads",
    ),
    "generate and its heads": (
        "generate x {model} --heads {hydra} --trace-out {hydra}/heads.json",
        "/heads.json would overwrite what --heads {hydra} reads",
    ),
    "generate and its model": (
        "generate x {model} --policy plain --trace-out {folder}/config.json",
        "/config.json would overwrite what --model {folder} reads",
    ),
    "generate and a folder": (
        "generate x {model} --policy plain --trace-out d",
        "--trace-out d is a folder; give the name of a file",
    ),
    "a picture and its run": (
        "trace show f.html --out f.html",
        "--out f.html would overwrite what FILE f.html reads",
    ),
    "a tree": ("tree convert f.py:best f.py", "OUT f.py would overwrite what FILE f.py reads"),
    "a tree by its other name": (
        "convert tree t.json t.json --to vllm",
        "OUT t.json would overwrite what FILE t.json reads",
    ),
    "answers and prompts": (
        "train-heads {model} --prompts w/answers.jsonl --work w --out new",
        "--work w/answers.jsonl would overwrite what --prompts w/answers.jsonl reads",
    ),
    "the note of answers and prompts": (
        "train-heads {model} --prompts w/answers.json --work w --out new",
        "--work w/answers.json would overwrite what --prompts w/answers.json reads",
    ),
    "heads and their model": (
        "train-heads {model} --prompts f.jsonl --work w --out {folder}",
        "--out {folder} is the folder that --model {folder} reads; give another one",
    ),
    "heads and those to begin with": (
        "train-heads {model} --prompts f.jsonl --work w --out {hydra} --start-from {hydra}",
        "--out {hydra} is the folder that --start-from {hydra} reads; give another one",
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_an_input_is_never_overwritten(
    name: str,
    model_folder: Path,
    hydra_folder: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("w", "d"):
        (tmp_path / folder).mkdir()
    for file in ("f.jsonl", "f.html", "w/answers.jsonl", "w/answers.json"):
        (tmp_path / file).write_text(json.dumps({"prompt": "a question"}))
    (tmp_path / "hard").hardlink_to("f.jsonl")
    (tmp_path / "f.py").write_text("best = [[0], [0, 0]]\n")
    (tmp_path / "t.json").write_text("[[0], [0, 0]]")
    before = contents(tmp_path, model_folder, hydra_folder)
    places = {"model": f"--model {model_folder}", "folder": model_folder, "hydra": hydra_folder}
    command, said = (text.format(**places) for text in COMMANDS[name])
    assert said in one_line(command.split(), capsys)
    assert contents(tmp_path, model_folder, hydra_folder) == before


def contents(*folders: Path) -> dict[Path, bytes]:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files}


def test_a_bank_may_be_written_anew_beside_its_heads(tmp_path: Path) -> None:
    for name in ("bank.json", "heads.json"):
        (tmp_path / name).touch()
    reads = given("--heads", tmp_path)
    check_overwrites(given("--out", tmp_path / "bank.json", tmp_path / "new.json"), reads)
    with pytest.raises(BadInput, match=r"heads.json would overwrite what --heads"):
        check_overwrites(given("--out", tmp_path / "heads.json"), reads)


def test_two_outputs_are_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writes = [Place("--out", Path("a")), Place("--report", tmp_path / "a")]
    with pytest.raises(BadInput, match=r"--out a and --report .*/a are one file"):
        check_overwrites(writes, [])


def test_names_of_no_file_are_passed_over() -> None:
    reads = [*tree_files("--tree", "medusa-63"), *given("--prompts", "x" * 9999, "a\0b")]
    check_overwrites(given("--out", "new.json"), [*reads, *tree_files("--tree", None)])
