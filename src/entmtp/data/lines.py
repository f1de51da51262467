"""JSON lines: one object a line, and what is wrong with a line said as FILE:LINE.

Knows: bytes, UTF-8, JSON, and what to do about a bad line. Does not know: what the objects mean.

Every file of prompts, conversations or answers is read here, so that all commands accept the same
things (a byte order mark, CRLF, blank lines, no newline at the end) and refuse the same things.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from entmtp.errors import BadInput

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

T = TypeVar("T")
Parse = Callable[[dict[str, Any], str], T]
"""From an object and its place (FILE:LINE) to what is wanted; raises ValueError to refuse it."""
OnBadLine = Callable[[str], None]
"""Told what is wrong with a line; returns to have it skipped, or raises."""


def refuse_line(message: str) -> None:
    """The `OnBadLine` of a caller who wants every line to be right."""
    raise BadInput(f"{message} (--skip-bad-lines leaves such lines out)")


class SkippedLines:
    """An `OnBadLine` that lets a bad line go and remembers how many did."""

    def __init__(self) -> None:
        self.count = 0
        self._first = ""

    def __call__(self, message: str) -> None:
        self._first = self._first or message
        self.count += 1

    def summary(self) -> str:
        """How many lines were skipped and why the first was; empty for none."""
        if not self.count:
            return ""
        lines = "1 line was" if self.count == 1 else f"{self.count} lines were"
        return f"{lines} skipped, the first: {self._first}"


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: half a surrogate pair is no text.

    Python puts such halves where the bytes of a command line are not UTF-8.
    """
    return not any("\ud800" <= character <= "\udfff" for character in value)


def read_lines(
    path: Path, parse: Parse[T], on_bad: OnBadLine = refuse_line, expected: str = "JSON lines"
) -> Iterator[T]:
    """What `parse` makes of each line of a file, read as it is asked for.

    Raises:
        BadInput: the file cannot be read, or `on_bad` refuses a line.
    """
    try:
        with path.open("rb") as lines:
            yield from parse_lines(lines, str(path), parse, on_bad)
    except OSError as error:
        raise _unreadable(path, error, expected) from None


def check_readable(path: Path, expected: str) -> None:
    """Raises BadInput: there is no such file, or it cannot be opened."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise _unreadable(path, error, expected) from None


def _unreadable(path: Path, error: OSError, expected: str) -> BadInput:
    reason = error.strerror or str(error)
    return BadInput(f"{path}: {reason}; expected a file of {expected}")


def parse_lines(
    lines: Iterable[bytes], name: str, parse: Parse[T], on_bad: OnBadLine = refuse_line
) -> Iterator[T]:
    """What `parse` makes of each line; `name` is what errors call the file."""
    is_first = True
    for number, raw in enumerate(lines, start=1):
        line = raw.removeprefix(BYTE_ORDER_MARK).strip() if number == 1 else raw.strip()
        if not line:
            continue
        place = f"{name}:{number}"
        try:
            parsed = parse(_object(line, may_be_list=is_first), place)
        except ValueError as error:
            on_bad(f"{place}: {error}")
        else:
            yield parsed
        is_first = False


def _object(line: bytes, may_be_list: bool) -> dict[str, Any]:
    """The JSON object of a line; raises ValueError, saying what stands there instead."""
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"not UTF-8 text: byte 0x{line[error.start]:02x} in column {error.start + 1}; convert"
            " the file to UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        # A whole file as one list is how several collections are published.
        hint = "; if the file is one list, put each entry on a line of its own"
        raise ValueError(
            f"not JSON: {error.msg} in column {error.colno}; expected a JSON object a line"
            + (hint if may_be_list and line.startswith(b"[") else "")
        ) from None
    except RecursionError:
        raise ValueError("not JSON that can be read: nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {kind_of(value)}")
    return value


def kind_of(value: Any) -> str:
    """What JSON calls the type of `value`."""
    names = {dict: "an object", list: "a list", str: "text", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
