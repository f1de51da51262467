"""What a number that a user gives must be like, and the one line that says so.

Knows: numbers and their names. Does not know: what they are for.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from entmtp.errors import BadInput


def check_number(name: str, value: object, low: float, high: float, wanted: str) -> None:
    """Raise `BadInput` unless `value` is a finite number from `low` to `high`, ends included."""
    # True and False are numbers to Python, and never meant as such.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and isfinite(value) and low <= value <= high):  # type: ignore[arg-type,operator]
        raise BadInput(f"{name} is {value!r}; give {wanted}")


def check_count(name: str, value: object, low: int, high: int | None, wanted: str) -> None:
    """Raise `BadInput` unless `value` is a whole number from `low` to `high`, if there is one."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not (is_whole and value >= low and (high is None or value <= high)):  # type: ignore[operator]
        raise BadInput(f"{name} is {value!r}; give {wanted}")


def check_pairs(name: str, pairs: object, wanted: str) -> None:
    """Raise `BadInput` unless `pairs` is a tuple or list of such with two things in each."""
    if not (_is_list(pairs) and all(_is_list(pair) and len(pair) == 2 for pair in pairs)):  # type: ignore[attr-defined]
        raise BadInput(f"{name} is {pairs!r}; give {wanted}")


def _is_list(value: object) -> bool:
    return isinstance(value, tuple | list)


def check_ids(name: str, ids: object, vocab_size: int | None = None) -> None:
    """Raise `BadInput` unless all are token ids; of a vocabulary, where its size is known."""
    if not isinstance(ids, Iterable) or isinstance(ids, str):
        raise BadInput(f"{name} is {ids!r}; give several token ids")
    high = None if vocab_size is None else vocab_size - 1
    wanted = "token ids from 0 up" if high is None else f"token ids from 0 to {high}"
    for each in ids:
        check_count(f"a token id in {name}", each, 0, high, wanted)
