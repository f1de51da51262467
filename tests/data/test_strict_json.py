"""What a file of figures cannot hold is refused by its place; all else is read as Python reads."""

from __future__ import annotations

import json
import re

import pytest

from entmtp.data.strict_json import count, number, parse_json

FINE = (
    r'{"a": "\ud83d\ude00", "b": "1e99 NaN Infinity", "c": [-1.5e-99, 18446744073709551616, 1e30],'
    ' "d": {"e": null, "f": true}, "g": 0.12345678901234567}'
)


def test_what_is_fine_is_read() -> None:
    assert parse_json(FINE) == json.loads(FINE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": [1, NaN]}', "a[1] is nan, which is no number of such a file"),
        ('{"a": {"b": -Infinity}}', "a.b is -inf, which"),
        ("[0, 1e400]", "[1] is inf, which"),
        ("[0, 1e130]", "[1] is 1e+130, which"),
        ('{"a": ' + "1" + "0" * 400 + "}", "a is 100000000000000000"),
        ("-1e101", "it is -1e+101, which"),
        (r'{"a": ["\ud800"]}', "a[0] holds half a surrogate pair, which is no text"),
        (r'{"a": {"\udfff": 1}}', "a name in a holds half a surrogate pair"),
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "integer string conversion"),
    ],
)
def test_what_no_file_of_figures_holds_is_refused_by_its_place(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as caught:
        parse_json(text)
    assert len(str(caught.value)) < 200
    str(caught.value).encode()  # it can be printed


def test_what_is_no_json_is_told_apart() -> None:
    with pytest.raises(json.JSONDecodeError):
        parse_json("{")


@pytest.mark.parametrize("value", [True, "1", None, [1], -0.5, float("nan"), 10**130])
def test_numbers_and_counts_are_nothing_else(value: object) -> None:
    with pytest.raises(ValueError, match="is no number from 0 up"):
        number(value)
    with pytest.raises(ValueError, match="is no count from 1 up"):
        count(value, 1)


def test_numbers_and_counts() -> None:
    assert (number(3), number(-0.5, None), count(3)) == (3.0, -0.5, 3)
    assert type(number(3)) is float
    for value in (0, 1.0):
        with pytest.raises(ValueError, match="is no count from 1 up"):
            count(value, 1)
