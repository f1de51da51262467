"""Every known fault of sections 1 to 3 and 6 that a test can show today has one of its name."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CASES = """
L01 L02 L03 L04 L05 L06 L07 L09 L10 L12 L13 L14 L15 L16 L17
B01 B02 B04 B06 B07 B08 B09 B10 B11 B12 B13 B15 B17 B18 B19
M01 M02 M03 M04 M06 M07 M08 M09 M10 M12 M13
T01 T02 T03 T04 T05 T06 T07 T08 T09
"""


def test_every_case_has_a_test_of_its_name() -> None:
    named = {
        name
        for file in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def test_([A-Z]\d\d)_", file.read_text("utf-8"), re.MULTILINE)
    }
    assert [case for case in CASES.split() if case not in named] == []
