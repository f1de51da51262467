"""Scores and tables, by hand."""

from __future__ import annotations

import math

import pytest

from entmtp.errors import BadInput
from entmtp.scheduler import (
    Signals,
    StepFunction,
    identity_by_log_prob,
)
from entmtp.scheduler.acceptance import Columns
from entmtp.scheduler.score import Known, reader_of, score_by_name, score_of_draft
from entmtp.trees import Tree


def test_scores_by_hand() -> None:
    tree = Tree.from_paths([(0,), (1,), (0, 0), (1, 0)])
    log_probs = [0.0, *map(math.log, (0.5, 0.25, 0.4, 0.8))]
    signals = Signals(3, 1, 0.6, 1.2)
    expected = {
        "p0": 0.6, "entropy": -1.2, "accepted": 2.5, "c1": 0.5, "c2": 0.4, "g1": 0.5, "g2": 0.2,
        "g4": 0.2, "sum_g": 0.7, "sum_tree": 0.75 + 0.4, "p0g2": 0.12, "p0sum_g": 0.42,
    }  # fmt: skip
    for name, value in expected.items():
        score = score_of_draft(name, tree)
        read = reader_of(score, tree)
        known = Known(signals, 2.5, read(log_probs))
        assert score.of(known) == pytest.approx(value), name
        assert score.least(known) == pytest.approx(value), name
        assert score.reads_root == (name.startswith("p0") or name == "entropy")
        # Of half a draft it says between what it can be.
        half = Known(signals, 2.5, read(log_probs[:3]))
        assert score.least(half) <= score.of(known) + 1e-12 <= score.of(half) + 2e-12
    for name in ("g0", "g", "p0p0", "gx", "sum", "", "best", "c-1"):
        with pytest.raises(BadInput, match="unknown score"):
            score_by_name(name, 4)


def test_step_functions() -> None:
    table = StepFunction((1.0, 2.0), (0.1, 0.5, 0.9))
    assert [table(x) for x in (0.0, 1.0, 1.5, 2.0, 9.0)] == [0.1, 0.5, 0.5, 0.9, 0.9]
    columns = Columns([table, StepFunction.constant(3.0), StepFunction((1.5,), (0.0, 1.0))])
    for x in (0.0, 1.0, 1.4, 1.5, 2.0):
        assert columns(x) == (table(x), 3.0, float(x >= 1.5))
    own_word = identity_by_log_prob()
    for x in (-0.01, -0.4, -1.3, -4.2):
        assert own_word(x) == pytest.approx(math.exp(x), rel=0.3)
