"""Cases T04 and T05: what prompt files may look like, and what is said about those that may not."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest

from entmtp.data import Message, SkippedLines, load_prompts, packaged_prompts, read_prompts
from entmtp.errors import BadInput

SHARED = Path(__file__).parents[3] / "shared" / "data"
GOOD = b'{"prompt": "one"}\n'


def write(folder: Path, raw: bytes) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(raw)
    return path


def test_four_spellings(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        b'{"task_id": "T/1", "kind": "code", "prompt": "a"}\n'
        b'{"id": 7, "category": "chat", "turns": ["b", "c", "d"]}\n'
        b'{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "e"},'
        b' {"role": "assistant", "content": "recorded"}]}\n'
        b'{"conversations": [{"from": "human", "value": "f"}, {"from": "gpt", "value": "g"},'
        b' {"from": "human", "value": "h"}]}\n',
    )
    code, chat, messages, conversations = read_prompts(path)
    assert (code.id, code.kind, code.text) == ("T/1", "code", "a")
    assert (chat.id, chat.kind, chat.text, chat.later_turns) == ("7", "chat", "b", ("c", "d"))
    assert messages.messages == (Message("system", "s"), Message("user", "e"))
    assert conversations.messages == (
        Message("user", "f"),
        Message("assistant", "g"),
        Message("user", "h"),
    )


@pytest.mark.parametrize(
    "raw",
    [
        b'\n{"prompt": "one"}\n\n  \n{"prompt": "two"}\n',
        b'{"prompt": "one"}\r\n{"prompt": "two"}\r\n',
        b'\xef\xbb\xbf{"prompt": "one"}\n{"prompt": "two"}\n',
        b'{"prompt": "one"}\n{"prompt": "two"}',
    ],
    ids=["blank lines", "CRLF", "byte order mark", "no newline at the end"],
)
def test_T04_accepted(tmp_path: Path, raw: bytes) -> None:
    assert [prompt.text for prompt in read_prompts(write(tmp_path, raw))] == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"prompt": "one"', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'"text"', "expected a JSON object, got text"),
        (b'{"question": "one"}', "no `prompt`, `turns`, `messages` or `conversations`; it has"),
        (b'{"prompt": 3}', "expected text, got a number"),
        (b'{"prompt": null}', "expected text, got null"),
        (b'{"prompt": " "}', "is empty"),
        (b'{"prompt": "caf\xe9"}', "not UTF-8 text: byte 0xe9 in column 16"),
        (b'{"prompt": "\\ud800"}', "half a surrogate pair"),
        (b'{"turns": []}', "is empty"),
        (b'{"turns": "one"}', "expected a list, got text"),
        (b'{"turns": ["one", ""]}', "`turns[1]` is empty"),
        (b'{"messages": [{"role": "assistant", "content": "a"}]}', "no message of the user"),
        (b'{"messages": [{"role": "tool", "content": "a"}]}', "unknown role 'tool'"),
        (b'{"messages": [{"role": "user"}]}', "expected text, got null"),
        (b'{"messages": [{"role": ["user"], "content": "a"}]}', "unknown role ['user']"),
        (b'{"messages": ["one"]}', "expected a JSON object, got text"),
    ],
)
def test_T04_bad_line_is_named(tmp_path: Path, line: bytes, said: str) -> None:
    path = write(tmp_path, GOOD * 2 + line + b"\n" + GOOD)
    with pytest.raises(BadInput) as caught:
        read_prompts(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:3: ")
    assert said in message
    assert "\n" not in message


def test_T04_bad_lines_may_be_skipped_and_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + b"{\n" + GOOD + b'{"prompt": 3}\n')
    skipped = SkippedLines()
    assert len(read_prompts(path, skipped)) == 2
    assert skipped.summary().startswith(f"2 lines were skipped, the first: {path}:2: not JSON")
    with pytest.raises(BadInput, match="holds no prompt"):
        read_prompts(write(tmp_path, b"{\n"), SkippedLines())


def test_T04_a_whole_file_as_one_list_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="put each entry on a line of its own"):
        read_prompts(write(tmp_path, b'[\n  {"prompt": "one"}\n]\n'))


@pytest.mark.parametrize("raw", [b"", b"\n \n\r\n", b"\xef\xbb\xbf"])
def test_T05_no_prompts(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(BadInput, match="holds no prompt"):
        read_prompts(write(tmp_path, raw))


def test_T05_folder_and_missing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Is a directory"):
        read_prompts(tmp_path)
    with pytest.raises(BadInput, match="No such file"):
        read_prompts(tmp_path / "absent.jsonl")
    with pytest.raises(BadInput, match="one of packaged, humaneval"):
        load_prompts("absent")


def test_T05_no_rights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)

    def refuse(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # Not by chmod: the tests may run as root, who may read everything.
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadInput, match="Permission denied"):
        read_prompts(path)


def test_packaged_prompts() -> None:
    prompts = packaged_prompts()
    assert Counter(prompt.kind for prompt in prompts) == {"code": 8, "math": 8, "chat": 8}
    assert len({prompt.id for prompt in prompts}) == len(prompts)
    assert load_prompts("packaged") == prompts


def test_humaneval_has_to_be_fetched(empty_cache: Path) -> None:
    with pytest.raises(BadInput, match="run `entmtp fetch humaneval` first"):
        load_prompts("humaneval")


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no {SHARED}")
@pytest.mark.parametrize("name", ["humaneval", "gsm8k", "mt_bench"])
def test_evaluation_files_read(name: str) -> None:
    prompts = read_prompts(SHARED / "eval" / f"{name}.jsonl")
    assert len(prompts) == {"humaneval": 164, "gsm8k": 660, "mt_bench": 80}[name]
    assert all(prompt.text for prompt in prompts)
