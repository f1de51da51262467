"""Conversations as JSON objects spell them: `messages`, `conversations`, `turns` or `prompt`.

Knows: the four spellings found in the wild, and the names of roles in two of them. Does not
know: files, tokenizers, who answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from entmtp.data.lines import is_text, kind_of

ROLES = {
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


class Given(NamedTuple):
    """What an object holds, before anybody decides who answers."""

    id: str
    kind: str
    messages: tuple[Message, ...]
    """At least one, recorded answers included."""
    later_turns: tuple[str, ...]
    is_text: bool
    """The object held bare text, not messages with roles."""


def read_given(fields: Mapping[str, Any], place: str) -> Given:
    """The conversation of an object; without an `id` it is named for its line in the file.

    Raises:
        ValueError: a key is missing, or of a wrong type, or empty.
    """
    default_id = place.rpartition(":")[2]
    row_id = next((fields[key] for key in _ID_KEYS if fields.get(key) is not None), default_id)
    kind = next((fields[key] for key in _KIND_KEYS if fields.get(key) is not None), "")
    messages, later_turns, is_text = _messages(fields)
    return Given(_label(row_id), _label(kind), messages, later_turns, is_text)


def _label(value: Any) -> str:
    """One line that can be printed, whatever the file has for a name."""
    return " ".join("".join(char if char.isprintable() else " " for char in str(value)).split())


def _messages(fields: Mapping[str, Any]) -> tuple[tuple[Message, ...], tuple[str, ...], bool]:
    for key in ("messages", "conversations"):
        if key in fields:
            items = _list(fields[key], f"`{key}`")
            return tuple(_message(item, f"`{key}[{i}]`") for i, item in enumerate(items)), (), False
    if "turns" in fields:
        turns = _list(fields["turns"], "`turns`")
        first, *later = [_text(turn, f"`turns[{i}]`") for i, turn in enumerate(turns)]
        return (Message("user", first),), tuple(later), True
    if "prompt" in fields:
        return (Message("user", _text(fields["prompt"], "`prompt`")),), (), True
    keys = ", ".join(f"`{key}`" for key in list(fields)[:5]) or "no key"
    raise ValueError(f"no `prompt`, `turns`, `messages` or `conversations`; it has {keys}")


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise ValueError(f"{where}: expected a JSON object, got {kind_of(item)}")
    role = item.get("role", item.get("from"))
    if not isinstance(role, str) or role not in ROLES:
        raise ValueError(f"{where}: unknown role {role!r}; expected one of {', '.join(ROLES)}")
    return Message(ROLES[role], _text(item.get("content", item.get("value")), where))


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{where}: expected a list, got {kind_of(value)}")
    if not value:
        raise ValueError(f"{where} is empty; expected at least one entry")
    return value


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{where}: expected text, got {kind_of(value)}")
    if not value.strip():
        raise ValueError(f"{where} is empty; expected some text")
    if not is_text(value):
        raise ValueError(f"{where} holds half a surrogate pair, which is no text")
    return value
