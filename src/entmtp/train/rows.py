"""Rows of training text: prompt and answer ids, read from JSON lines.

Knows: the form of an answers file. Does not know: models, features.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from entmtp.errors import BadInput


class Row(NamedTuple):
    """One conversation turn: a prompt and what the target answered."""

    id: str
    kind: str
    temperature: float
    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.answer_ids)

    def cut(self, max_length: int) -> Row:
        """The same row with its answer cut so that the whole fits."""
        room = max(0, max_length - len(self.prompt_ids))
        return self._replace(answer_ids=self.answer_ids[:room])


def prompt_key(prompt_ids: Sequence[int]) -> str:
    """Names a prompt by its content."""
    return hashlib.sha256(json.dumps(list(prompt_ids)).encode()).hexdigest()[:16]


def content_key(prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> str:
    """Names a row by its content."""
    text = json.dumps([list(prompt_ids), list(answer_ids)])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def check_model(fields: Mapping[str, Any], fingerprint: str, place: str) -> None:
    """Refuse an answer of another model; one that does not say whose it is passes.

    Raises:
        BadInput: it names another model's fingerprint.
    """
    made_by = fields.get("model", fingerprint)
    if made_by != fingerprint:
        raise BadInput(
            f"{place} is an answer of the model {made_by}, this is {fingerprint}; heads learn"
            " their own model's words: use another work folder or file"
        )


def read_rows(paths: Iterable[Path], fingerprint: str) -> Iterator[Row]:
    """Rows of answers files, in order. Blank lines and a byte-order mark are skipped.

    Raises:
        BadInput: a file is missing, or a line is not an answer of the model with this
            fingerprint; the message names file and line.
    """
    for path in paths:
        try:
            with path.open(encoding="utf-8-sig") as lines:
                for number, line in enumerate(lines, start=1):
                    if line.strip():
                        yield _parse(line, f"{path.name}:{number}", fingerprint)
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"cannot read answers from {path} ({error})") from error


def _parse(line: str, place: str, fingerprint: str) -> Row:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BadInput(f"{place}: not a JSON object ({error})") from error
    if not isinstance(fields, dict):
        raise BadInput(f"{place}: a JSON object was expected, got {type(fields).__name__}")
    check_model(fields, fingerprint, place)
    temperature = fields.get("temperature", 0.0)
    if type(temperature) not in (int, float):
        raise BadInput(f"{place}: temperature must be a number, got {temperature!r}")
    return Row(
        id=str(fields.get("id", place)),
        kind=str(fields.get("kind", "")),
        temperature=float(temperature),
        prompt_ids=tuple(_ids(fields, "prompt_ids", place)),
        answer_ids=tuple(_ids(fields, "answer_ids", place)),
    )


def _ids(fields: dict[str, Any], name: str, place: str) -> list[int]:
    ids = fields.get(name)
    if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
        raise BadInput(f"{place}: {name} must be a list of token ids")
    return ids
