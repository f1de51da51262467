"""The README's figures are those of the committed measurements."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes them."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("readme", "speed_tables", "result_files"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return import_module("readme")


def test_the_figures_are_those_of_the_results(readme: ModuleType) -> None:
    pages = readme.pages()
    assert {"README.md", "docs/calibrate.md", "docs/runtimes.md", "docs/scheduler.md"} == set(pages)
    for page in pages:
        text = (ROOT / page).read_text(encoding="utf-8")
        assert readme.filled(page, text) == text, page


def test_a_batch_is_told_of_where_it_was_measured(
    readme: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = import_module("result_files")
    for file in files.RESULTS.iterdir():
        if file.name != files.BATCH:
            (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(files, "RESULTS", tmp_path)
    assert "sequences together" not in readme.figures()
    rates = {"median": 2.5, "low": 2.0, "high": 3.0, "coverage": 0.97}
    method = {"name": "plain", "ratio": rates, "together_tokens_per_second": rates}
    content = {"methods": [method], "settings": {"together": 8, "max_tokens": 24}}
    (tmp_path / files.BATCH).write_text(json.dumps(content))
    said = "24 tokens each: 2.50x [2.00, 3.00] with plain decoding (2.5 tokens/s)."
    assert said in readme.figures()
