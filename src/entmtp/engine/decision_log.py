"""Decisions of a run as JSON lines, written as they are made: `--trace-out`, `entmtp trace show`.

    {"schema_version": 1, "model": …, "method": …}          first, once
    {"sample": 0, "step": null, "token_ids": […], "text": …} the prompt's own token
    {"sample": 0, "step": 0, …, "token_ids": […], "text": …} each step: what it was decided by
    {"sample": 0, "step": null, "token_ids": [], "text": …}  text held back until the end

Text is what was safe to show by then: a character cut in two stands with the step that ended it.
Knows: events, the file. Does not know: pictures, terminals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from entmtp.data.strict_json import count, number, parse_json
from entmtp.engine.events import Event, FinishEvent
from entmtp.errors import ArtefactError
from entmtp.scheduler.record import as_json

SCHEMA_VERSION = 1
MAX_ROWS = 1_000_000
"""No step verifies more."""
_ROUNDING = 1e-3
"""By which an entropy of nothing may lie below 0."""


class DecisionLog:
    """Writes one line an event, and leaves none in a buffer."""

    def __init__(self, path: Path, about: Mapping[str, object]) -> None:
        """`about`: what the run was, as JSON values."""
        self._path = path
        self._about = about

    def __enter__(self) -> Self:
        self._file = self._path.open("w", encoding="utf-8")
        self._line({"schema_version": SCHEMA_VERSION, **self._about})
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, sample: int, event: Event) -> None:
        """Write down one event of a request's sample."""
        entry: dict[str, object] = {"sample": sample, "step": None}
        if isinstance(event, FinishEvent):
            entry |= {"token_ids": [], "text": event.text}
            entry["finish_reason"] = event.result.finish_reason
        else:
            if event.decision is not None:
                entry |= as_json(event.decision)
            entry |= {"token_ids": list(event.token_ids), "text": event.text}
        self._line(entry)

    def _line(self, entry: Mapping[str, object]) -> None:
        self._file.write(json.dumps(entry, allow_nan=False) + "\n")
        self._file.flush()


class LoggedStep(NamedTuple):
    """What a picture needs of one line."""

    sample: int
    text: str
    num_tokens: int
    num_nodes: int | None
    """Rows verified; None where the line is no step"""
    num_accepted: int
    expected_accepted: float | None
    entropy: float | None


class LoggedRun(NamedTuple):
    """A whole file."""

    about: Mapping[str, Any]
    steps: tuple[LoggedStep, ...]

    def of_sample(self, sample: int) -> LoggedRun:
        """Of one answer."""
        return self._replace(steps=tuple(one for one in self.steps if one.sample == sample))


def read_decisions(path: Path) -> LoggedRun:
    """Read a log. What a run that died left of its last line is passed over.

    Raises:
        ArtefactError: it cannot be read, is of another version, or a line is broken.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError(f"cannot read {path}: {error}; give a file of --trace-out") from error
    about = _object(path, 1, lines[0]) if lines else {}
    if (version := about.get("schema_version")) != SCHEMA_VERSION:
        raise ArtefactError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}; give a file"
            " of --trace-out"
        )
    steps = []
    for line_number, line in enumerate(lines[1:], start=2):
        entry = _object(path, line_number, line)
        try:
            steps.append(_step(entry))
        except (KeyError, TypeError, ValueError) as error:
            raise _no_step(path, line_number, repr(error)) from error
    return LoggedRun(about, tuple(steps))


def _no_step(path: Path, line_number: int, reason: str) -> ArtefactError:
    return ArtefactError(
        f"{path}:{line_number} is no step of a run ({reason}); make the file again with --trace-out"
    )


def _object(path: Path, line_number: int, line: str) -> dict[str, Any]:
    try:
        entry = parse_json(line)
    except json.JSONDecodeError as error:
        raise ArtefactError(
            f"{path}:{line_number} is not JSON ({error}); give a file of --trace-out"
        ) from error
    except ValueError as error:
        raise _no_step(path, line_number, str(error)) from error
    if not isinstance(entry, dict):
        raise ArtefactError(f"{path}:{line_number} is no JSON object; give a file of --trace-out")
    return entry


def _step(entry: Mapping[str, Any]) -> LoggedStep:
    """Raises KeyError, TypeError, ValueError: no step of this program could have left it."""
    is_step = entry["step"] is not None
    num_nodes = count(entry["num_nodes"], 1) if is_step else None
    num_accepted = count(entry["num_accepted"]) if is_step else 0
    if num_nodes is not None and not num_accepted < num_nodes <= MAX_ROWS:
        raise ValueError(f"{num_accepted} drafts accepted of {num_nodes} rows")
    text, token_ids = entry["text"], entry["token_ids"]
    if not isinstance(text, str) or not isinstance(token_ids, list):
        raise TypeError("its text is no text, or its token_ids are no list")
    expected, entropy = entry.get("expected_accepted"), entry.get("entropy")
    return LoggedStep(
        sample=count(entry["sample"]),
        text=text,
        num_tokens=len(token_ids),
        num_nodes=num_nodes,
        num_accepted=num_accepted,
        expected_accepted=None if expected is None else number(expected),
        entropy=None if entropy is None else number(entropy, -_ROUNDING),
    )
