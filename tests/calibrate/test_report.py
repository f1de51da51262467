"""What people are told of a calibration is true of the bank that was made."""

from __future__ import annotations

import pytest

from entmtp.calibrate.report import given_up


@pytest.mark.parametrize("fastest", [91.0, 91.04, 90.0])
def test_a_bank_that_has_the_fastest_tree_gave_up_nothing(fastest: float) -> None:
    assert given_up({"best_static": 91.0, "fastest_static": fastest}, 5) == ""


def test_what_thin_evidence_gave_up_is_said_with_its_size() -> None:
    said = given_up({"best_static": 91.0, "fastest_static": 136.1}, 5)
    assert said.startswith(
        "the fastest candidate on these prompts (nodes: 5) is predicted to bring"
    )
    assert " 136.1, 49.6 % more than the bank's static tree; " in said
