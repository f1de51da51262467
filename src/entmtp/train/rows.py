"""Rows of training text: prompt and answer ids, from JSON lines.

Knows: the two forms of a line: this program's own answers (`prompt_ids`, `answer_ids`), and
conversations with recorded answers. Does not know: features, heads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from entmtp.data import OnBadLine, refuse_line
from entmtp.data.chat import marked_ids
from entmtp.data.lines import kind_of, read_lines
from entmtp.data.messages import read_given
from entmtp.data.strict_json import number
from entmtp.errors import BadInput
from entmtp.target import TargetModel

NO_TEMPLATE = (
    "a conversation, and this model's tokenizer has no chat template; pass one with"
    " --chat-template, or give texts as `prompt`"
)
NOT_GREEDY = 1.0
"""The temperature of recorded answers: nobody knows it, and greedy ones are picked out by it."""


class Row(NamedTuple):
    """A prompt and what the assistant said, perhaps with more turns behind."""

    id: str
    kind: str
    temperature: float
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    is_said: tuple[bool, ...] = ()
    """Which of `answer_ids` are the assistant's; empty: all."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)

    @property
    def key(self) -> str:
        """Names the row by its content."""
        return content_key(self.prompt_ids, self.answer_ids, self.is_said)

    @property
    def num_answer(self) -> int:
        """The assistant's tokens."""
        return sum(self.is_said) if self.is_said else len(self.answer_ids)

    @property
    def is_useful(self) -> bool:
        """Whether a draft could ever have been right: the first answer token is never drafted."""
        return bool(self.prompt_ids) and self.num_answer >= 2

    def is_answer(self) -> list[bool]:
        """Of every token of the row, whether it is the assistant's."""
        said = self.is_said or (True,) * len(self.answer_ids)
        return [False] * len(self.prompt_ids) + list(said)

    def cut(self, max_length: int) -> Row:
        """The same row with its answer cut so that the whole fits."""
        room = max(0, max_length - len(self.prompt_ids))
        return self._replace(answer_ids=self.answer_ids[:room], is_said=self.is_said[:room])


def prompt_key(prompt_ids: Sequence[int]) -> str:
    """Names a prompt by its content."""
    return hashlib.sha256(json.dumps(list(prompt_ids)).encode()).hexdigest()[:16]


def content_key(
    prompt_ids: Sequence[int], answer_ids: Sequence[int], is_said: Sequence[bool] = ()
) -> str:
    """Names a row by its content."""
    content: list[list[int]] = [list(prompt_ids), list(answer_ids)]
    if not all(is_said):
        content.append([int(value) for value in is_said])
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def read_rows(
    paths: Iterable[Path], target: TargetModel, on_bad: OnBadLine = refuse_line
) -> Iterator[Row]:
    """Rows of answers files, in order, read as they are asked for.

    Raises:
        BadInput: a file cannot be read, or a line holds neither an answer of this model nor a
            conversation and `on_bad` does not let it go; the message names file and line.
    """
    for path in paths:
        yield from read_lines(path, partial(_row, target), on_bad, "JSON lines with answers")


def _row(target: TargetModel, fields: dict[str, Any], place: str) -> Row:
    if "prompt_ids" in fields or "answer_ids" in fields:
        return _answer(target, fields, place)
    given = read_given(fields, place)
    if target.tokenizer is None:
        raise BadInput(f"{place}: this model has no tokenizer; give rows of token ids")
    if given.is_text:
        raise ValueError(
            "a prompt without an answer; expected `messages` or `conversations` with turns of the"
            " assistant, or pass the file as --prompts"
        )
    if not target.tokenizer.chat_template:
        raise BadInput(f"{place}: {NO_TEMPLATE}")
    try:
        marked = marked_ids(target.tokenizer, given.messages, target.eos_ids)
    except BadInput as error:
        raise ValueError(str(error)) from error
    first = marked.is_answer.index(True) if any(marked.is_answer) else len(marked.ids)
    end = len(marked.ids) - marked.is_answer[::-1].index(True) if first < len(marked.ids) else first
    return Row(
        id=given.id,
        kind=given.kind,
        temperature=NOT_GREEDY,
        prompt_ids=marked.ids[:first],
        answer_ids=marked.ids[first:end],
        is_said=marked.is_answer[first:end],
    )


def _answer(target: TargetModel, fields: Mapping[str, Any], place: str) -> Row:
    made_by = fields.get("model", target.fingerprint)
    if made_by != target.fingerprint:
        raise ValueError(
            f"an answer of the model {made_by}, this is {target.fingerprint}; heads learn their"
            " own model's words: use another file"
        )
    temperature = fields.get("temperature", 0.0)
    if type(temperature) not in (int, float):
        raise ValueError(f"`temperature`: expected a number, got {kind_of(temperature)}")
    temperature = number(temperature)
    return Row(
        id=str(fields.get("id", place)),
        kind=str(fields.get("kind", "")),
        temperature=temperature,
        prompt_ids=_ids(fields, "prompt_ids", target.vocab_size),
        answer_ids=_ids(fields, "answer_ids", target.vocab_size),
    )


def _ids(fields: Mapping[str, Any], name: str, vocab_size: int) -> tuple[int, ...]:
    ids = fields.get(name)
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise ValueError(f"`{name}`: expected a list of token ids, got {_shown(ids)}")
    if ids and max(ids) >= vocab_size:
        raise ValueError(
            f"`{name}` holds the id {max(ids)}, the vocabulary has {vocab_size}; was it made by"
            " another model?"
        )
    return tuple(ids)


def _shown(value: Any) -> str:
    return "a list with other things" if isinstance(value, list) else kind_of(value)
