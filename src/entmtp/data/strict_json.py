"""JSON of a file that a disk or a hand may have spoilt: only what a file of figures can hold.

Knows: JSON, and what Python's reader lets pass. Does not know: what a file means.

JSON has no NaN and no infinity, but Python reads them. It has numbers of any size, but those with
which floats soon overflow are no figures. And it can write half of a surrogate pair, which is no
text and cannot be printed. All three are refused where a file is read, by their place in it, so
that no reader needs to think of them.
"""

from __future__ import annotations

import json
import re
from typing import Any

from entmtp.data.lines import is_text

TOO_LARGE = 10**100
"""Of a number: three of them may be multiplied"""
MAX_COUNT = 2**63 - 1
"""Of what is counted: arrays hold it"""
_WORDS = ("NaN", "Infinity", "\\u")
_EXPONENT = re.compile(r"[eE]\+?\d\d")
_RUN = 40
"""Of digits: any hundred hold a whole one, from a multiple of it on"""


def parse_json(text: str) -> Any:
    """The value of a JSON text whose numbers are finite and of some size, and whose texts are text.

    Raises:
        ValueError: it is something else; of a value that is refused, the place is said.
            `json.JSONDecodeError` where it is no JSON.
    """
    try:
        value = json.loads(text)
        if _is_suspect(text):
            _check(value, "")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def _is_suspect(text: str) -> bool:
    """Whether it has what anything that is refused is written with: else nobody need look at all
    of its values, which takes ten times as long."""
    if any(word in text for word in _WORDS) or _EXPONENT.search(text):
        return True
    return any(text[at : at + _RUN].isdigit() for at in range(0, len(text), _RUN))


def _check(value: object, where: str) -> None:
    name = where or "it"
    if isinstance(value, dict):
        for key, each in value.items():
            _check(key, f"a name in {name}")
            _check(each, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for place, each in enumerate(value):
            _check(each, f"{where}[{place}]")
    elif isinstance(value, str):
        if not is_text(value):
            raise ValueError(f"{name} holds half a surrogate pair, which is no text")
    elif isinstance(value, (int, float)) and not abs(value) < TOO_LARGE:
        raise ValueError(f"{name} is {_shown(value)}, which is no number of such a file")


def number(value: object, least: float | None = 0.0) -> float:
    """A number that JSON has given, no smaller than `least`.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_large_enough = least is None or value >= least
        if abs(value) < TOO_LARGE and is_large_enough:
            return float(value)
    raise ValueError(f"{_shown(value)} is no number{_from(least)}")


def count(value: object, least: int = 0) -> int:
    """A whole number that JSON has given, no smaller than `least`.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_COUNT:
        raise ValueError(f"{_shown(value)} is no count{_from(least)}")
    return value


def _from(least: float | None) -> str:
    return "" if least is None else f" from {least:g} up"


def _shown(value: object) -> str:
    words = repr(value)
    return words if len(words) <= 40 else f"{words[:37]}..."
