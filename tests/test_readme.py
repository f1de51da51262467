"""The README's figures are those of the committed measurements."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_figures_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delitem(sys.modules, "readme", raising=False)
    import readme

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.filled(text) == text
