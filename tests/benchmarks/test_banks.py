"""What the scripts about banks compute from what they measure."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from scripts import script


def test_a_loss_is_of_tokens_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, weights = np.array([10.0, 30.0]), np.array([[2.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    found = script("kinds", monkeypatch).loss(
        tokens, np.array([1.0, 4.0]), np.array([1.0, 3.0]), weights
    )
    assert found["tokens_per_second"] == 8
    assert found["tokens_per_second_of_own"] == 10
    assert found["loss"] == pytest.approx(1 - 8 / 10)
    assert 0 <= found["low"] < found["loss"] < found["high"] <= 0.25


def test_a_rate_is_of_what_came_behind_so_many_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = script("random_heads", monkeypatch).rate
    seconds = [9.0, 1.0, 0.5, 0.5, 2.0]
    assert rate(seconds, 1) == 4 / 4
    assert rate(seconds, 3) == 2 / 2.5


def test_random_heads_have_the_width_of_trained_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = {"w": 3 * torch.randn(200, 200), "b": torch.ones(7), "ids": torch.arange(9)[None]}
    drawn = script("random_heads", monkeypatch).scrambled(trained, 0)
    assert drawn["w"].std() == pytest.approx(3, rel=0.05)
    assert (drawn["w"] - trained["w"]).abs().mean() > 1
    assert torch.equal(drawn["b"], trained["b"])
    assert torch.equal(drawn["ids"], trained["ids"])


def test_decisions_are_timed_by_question_and_keep_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = script("decisions", monkeypatch)
    out = tmp_path / "decisions.json"
    monkeypatch.setattr(sys, "argv", ["decisions", "--steps", "300", "--out", str(out)])
    assert module.main() == 0
    found = json.loads(out.read_text())["policies"]
    assert set(found) == set(module.POLICIES)
    for name, one in found.items():
        times = one["microseconds"]
        assert 0 < times["widest"] < times["step"], name
        assert max(times["goes_on"], times["choose"]) < times["step"], name
        assert one["kept_bytes"] < 16, name
    assert found["static"]["microseconds"]["step"] < found["per-step"]["microseconds"]["step"]
