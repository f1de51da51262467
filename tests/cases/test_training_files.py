"""Cases T04 and T05: every command that takes a file of prompts or answers reads it alike."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from entmtp.cli.app import run_command
from training_commands import Capture, command, left_behind, refused

GOOD = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bcd"}]}'
READERS = (
    "demo --prompts",
    "verify --prompts",
    "calibrate --prompts",
    "train-heads --prompts",
    "train-heads --answers",
)


def reading(reader: str, file: Path, model: Path, folder: Path, *more: str) -> list[str]:
    verb, flag = reader.split()
    drafts = {
        "demo": ("--methods", "plain"),
        "verify": ("--heads", str(model.parent / "heads"), "--tree", "chain-2"),
        "calibrate": ("--heads", str(model.parent / "heads"), "--out", str(folder / "bank.json")),
    }
    if verb in drafts:
        return [verb, "--model", str(model), flag, str(file), *drafts[verb], *more]
    return command(model, folder, flag, str(file), *more)


SHORT = ("--timing-seconds", "0")


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"messages": [', "not JSON: Expecting value in column 15; expected a JSON object"),
        (b'{"messages": "a"}', "`messages`: expected a list, got text"),
        (b'{"text": "a"}', "no `prompt`, `turns`, `messages` or `conversations`; it has `text`"),
        (b'{"messages": [{"role": "user", "content": ""}]}', "`messages[0]` is empty"),
        (b'{"messages": [{"role": "user", "content": "caf\xe9"}]}', "not UTF-8 text: byte 0xe9"),
    ],
    ids=["broken", "wrong type", "missing key", "empty text", "Latin-1"],
)
def test_T04_a_bad_line_is_named_by_every_command(
    reader: str, line: bytes, words: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join([GOOD, GOOD, line, GOOD]))
    said = refused(reading(reader, file, model, tmp_path), capsys)
    assert said.startswith(f"entmtp: {file}:3: ")
    assert words in said
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("reader", READERS)
def test_T04_bad_lines_may_be_skipped_and_are_counted(
    reader: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(
        b"\xef\xbb\xbf\r\n" + b"\r\n".join([GOOD, b"{", b"", GOOD + b" ", b"[]", GOOD])
    )
    more = {
        "demo --prompts": ("--max-tokens", "2"),
        "verify --prompts": ("--max-tokens", "2", "--dtype", "float32"),
        "calibrate --prompts": ("--max-tokens", "4", "--runtime", "eager", *SHORT),
        "train-heads --prompts": ("--num-tokens", "30", "--max-tokens", "8", "--epochs", "1"),
        "train-heads --answers": ("--epochs", "1"),
    }
    arguments = reading(reader, file, model, tmp_path, *more[reader], "--skip-bad-lines")
    assert run_command(arguments) == 0
    assert f"note: 2 lines were skipped, the first: {file}:3: not" in capsys.readouterr().err


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", ["0 bytes", "blank lines", "folder", "missing"])
def test_T05_nothing_to_read_is_one_line_and_leaves_nothing(
    reader: str, what: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "rows.jsonl"
    if what == "folder":
        file.mkdir()
    elif what != "missing":
        file.write_bytes(b"" if what == "0 bytes" else b"\n \r\n\n")
    said = refused(reading(reader, file, model, tmp_path), capsys)
    words = {"folder": "Is a directory", "missing": "(No such file|no prompts)"}
    assert re.search(words.get(what, "(holds no prompt|0 of 0 tokens are trained)"), said)
    assert left_behind(tmp_path) == []
