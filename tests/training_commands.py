"""`train-heads` as tests call it, on a tiny model, and the files that it is given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from entmtp.cli.app import run_command

Capture = pytest.CaptureFixture[str]
SIZES = (
    *("--num-draft-heads", "2", "--num-layers", "1", "--draft-vocab-size", "64"),
    *("--validation-share", "0.2", "--warmup-steps", "2", "--batch-tokens", "60"),
)


def command(model: Path, folder: Path, *more: str, kind: str = "medusa") -> list[str]:
    places = ["--work", str(folder / "work"), "--out", str(folder / "heads")]
    return ["train-heads", "--model", str(model), *places, "--kind", kind, *SIZES, *more]


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def conversation(*turns: str) -> dict[str, object]:
    roles = ("human", "gpt")
    return {"conversations": [{"from": roles[i % 2], "value": t} for i, t in enumerate(turns)]}


def talks(num_rows: int, answer: str = "and so on {}") -> list[dict[str, object]]:
    return [conversation(f"ask {i}", answer.format(i)) for i in range(num_rows)]


def refused(arguments: list[str], capsys: Capture) -> str:
    """The one line of a refusal; progress and notes may stand before it."""
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line = err.strip().splitlines()[-1]
    assert line.startswith("entmtp: ")
    assert "Traceback" not in err
    return line


def left_behind(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".jsonl"]
