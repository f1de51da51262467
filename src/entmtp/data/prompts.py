"""Prompts and conversations: JSON lines in, `Prompt` out.

Knows: the four spellings found in the wild (`prompt`, `turns`, `messages`, `conversations`), and
the prompt sets that have a name. Does not know: tokenizers, models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from entmtp.data.humaneval import HUMANEVAL, fetched_humaneval
from entmtp.errors import BadInput

_ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
}
"""Role names of OpenAI's and ShareGPT's forms, and what they are called here."""
_ID_KEYS = ("id", "task_id", "question_id")
_KIND_KEYS = ("kind", "category", "source")


class Message(NamedTuple):
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Something to answer."""

    id: str
    kind: str
    """What sort of text it is, e.g. code, math, chat; empty when the file does not say."""
    messages: tuple[Message, ...]
    """The conversation up to the user message that is to be answered."""
    later_turns: tuple[str, ...] = ()
    """Further user messages, each to be asked after the answer to the one before."""

    @property
    def text(self) -> str:
        """The user message that is to be answered."""
        return self.messages[-1].content


def read_prompts(path: str | Path) -> list[Prompt]:
    """Read a JSON lines file; blank lines, CRLF and a byte order mark are accepted.

    Raises:
        BadInput: the file cannot be read, holds no prompt, or has a bad line (named file:line).
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{path}: {reason}; expected a file of JSON lines with prompts") from None
    return parse_prompts(raw, str(path))


def parse_prompts(raw: bytes, name: str) -> list[Prompt]:
    """The prompts of a file's content; `name` is what errors call the file."""
    prompts = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_parse_line(line, default_id=str(number)))
        except ValueError as error:
            raise BadInput(f"{name}:{number}: {error}") from None
    if not prompts:
        raise BadInput(f"{name}: holds no prompt; expected JSON lines with `prompt` or `turns`")
    return prompts


def packaged_prompts() -> list[Prompt]:
    """The prompts that come with the package: code, math and chat, written for it."""
    resource = files("entmtp.data") / "packaged" / "demo.jsonl"
    return parse_prompts(resource.read_bytes(), "demo.jsonl")


def humaneval_prompts() -> list[Prompt]:
    """HumanEval from the cache.

    Raises:
        BadInput: it was not fetched yet.
    """
    if (path := fetched_humaneval()) is None:
        raise BadInput(f"{HUMANEVAL} is not in the cache; run `entmtp fetch {HUMANEVAL}` first")
    return read_prompts(path)


PROMPT_SETS: Mapping[str, Callable[[], list[Prompt]]] = {
    "packaged": packaged_prompts,
    HUMANEVAL: humaneval_prompts,
}
"""Prompt sets by name."""


def load_prompts(spec: str) -> list[Prompt]:
    """The prompts of a named set or of a file."""
    if spec in PROMPT_SETS:
        return PROMPT_SETS[spec]()
    if not Path(spec).exists():
        raise BadInput(
            f"no prompts {spec!r}; expected a file of JSON lines or one of {', '.join(PROMPT_SETS)}"
        )
    return read_prompts(spec)


def _parse_line(line: bytes, default_id: str) -> Prompt:
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(row, dict):
        raise ValueError(f"expected a JSON object, got {_kind_of(row)}")
    messages, later_turns = _messages(row)
    prompt_id = next((row[key] for key in _ID_KEYS if row.get(key) is not None), default_id)
    kind = next((row[key] for key in _KIND_KEYS if row.get(key) is not None), "")
    return Prompt(_label(prompt_id), _label(kind), messages, later_turns)


def _label(value: Any) -> str:
    """One line that can be printed, whatever the file has for a name."""
    return " ".join("".join(char if char.isprintable() else " " for char in str(value)).split())


def _messages(row: Mapping[str, Any]) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    if "prompt" in row:
        return (Message("user", _text(row["prompt"], "`prompt`")),), ()
    if "turns" in row:
        turns = _list(row["turns"], "`turns`")
        first, *later = [_text(turn, f"`turns[{i}]`") for i, turn in enumerate(turns)]
        return (Message("user", first),), tuple(later)
    for key in ("messages", "conversations"):
        if key in row:
            return _conversation(_list(row[key], f"`{key}`"), key), ()
    raise ValueError("no `prompt`, `turns`, `messages` or `conversations`")


def _conversation(items: list[Any], key: str) -> tuple[Message, ...]:
    """The messages up to the last one of the user: a recorded answer to it is not the target's."""
    messages = []
    for index, item in enumerate(items):
        where = f"`{key}[{index}]`"
        if not isinstance(item, dict):
            raise ValueError(f"{where}: expected a JSON object, got {_kind_of(item)}")
        role = item.get("role", item.get("from"))
        if not isinstance(role, str) or role not in _ROLES:
            raise ValueError(f"{where}: unknown role {role!r}; expected one of {', '.join(_ROLES)}")
        messages.append(Message(_ROLES[role], _text(item.get("content", item.get("value")), where)))
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages:
        raise ValueError(f"`{key}` has no message of the user")
    return tuple(messages)


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, got {_kind_of(value)}")
    if not value:
        raise ValueError(f"{where} is empty")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected text, got {_kind_of(value)}")
    if not value.strip():
        raise ValueError(f"{where} is empty")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError(f"{where} holds half a surrogate pair, which is no text")
    return value


def _kind_of(value: Any) -> str:
    """What JSON calls the type of `value`."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
