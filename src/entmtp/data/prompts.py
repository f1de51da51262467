"""Prompts: JSON lines in, `Prompt` out; and the prompt sets that have a name.

Knows: which part of a conversation is to be answered. Does not know: tokenizers, models.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from entmtp.data.humaneval import HUMANEVAL, fetched_humaneval
from entmtp.data.lines import OnBadLine, parse_lines, read_lines, refuse_line
from entmtp.data.messages import Message, read_given
from entmtp.errors import BadInput


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
    is_text: bool = False
    """The file gave bare text, which a model without a chat form can continue as it is."""

    @property
    def text(self) -> str:
        """The user message that is to be answered."""
        return self.messages[-1].content

    @property
    def content(self) -> str | tuple[Message, ...]:
        """What an engine encodes: the bare text where the file gave one, else the conversation."""
        return self.text if self.is_text else self.messages


def read_prompts(path: str | Path, on_bad: OnBadLine = refuse_line) -> list[Prompt]:
    """Read a JSON lines file.

    Raises:
        BadInput: the file cannot be read, holds no prompt, or has a bad line (named file:line)
            that `on_bad` does not let go.
    """
    path = Path(path)
    lines = read_lines(path, _prompt, on_bad, "JSON lines with prompts")
    return _some(lines, str(path))


def packaged_prompts() -> list[Prompt]:
    """The prompts that come with the package: code, math and chat, written for it."""
    raw = (files("entmtp.data") / "packaged" / "demo.jsonl").read_bytes()
    return _some(parse_lines(io.BytesIO(raw), "demo.jsonl", _prompt), "demo.jsonl")


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


def load_prompts(spec: str, on_bad: OnBadLine = refuse_line) -> list[Prompt]:
    """The prompts of a named set or of a file."""
    if spec in PROMPT_SETS:
        return PROMPT_SETS[spec]()
    if not Path(spec).exists():
        raise BadInput(
            f"no prompts {spec!r}; expected a file of JSON lines or one of {', '.join(PROMPT_SETS)}"
        )
    return read_prompts(spec, on_bad)


def _prompt(fields: dict[str, Any], place: str) -> Prompt:
    """The messages up to the last one of the user: a recorded answer to it is not the target's."""
    given = read_given(fields, place)
    messages = list(given.messages)
    while messages and messages[-1].role != "user":
        messages.pop()
    if not messages:
        raise ValueError("no message of the user to answer")
    return Prompt(given.id, given.kind, tuple(messages), given.later_turns, given.is_text)


def _some(prompts: Iterable[Prompt], name: str) -> list[Prompt]:
    if not (found := list(prompts)):
        raise BadInput(
            f"{name}: holds no prompt; expected JSON lines with `prompt`, `turns`, `messages` or"
            " `conversations`"
        )
    return found
