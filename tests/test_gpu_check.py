"""The script for a GPU runs end to end where there is none, in tiny sizes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "gpu_check.py"


@pytest.mark.slow
def test_it_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "found.json"
    monkeypatch.setattr(sys, "path", [str(SCRIPT.parent), *sys.path])
    arguments = ["--device", "cpu", "--quick", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.main() == 0
    report = json.loads(out.read_text(encoding="utf-8"))
    sections = report["sections"]
    assert list(sections) == list(script.SECTIONS)
    assert [name for name, found in sections.items() if "error" in found] == []
    assert sections["law"]["passed"]
    assert {run["runtime"] for run in sections["law"]["runs"]} == {"eager", "graphs"}
    assert "CUDA" in sections["sync"]["left_out"]
    counts = sections["steadiness"]["num_captured"]
    assert counts["before"] == counts["after"]
    assert {run["runtime"] for run in sections["times"]["runs"]} == {"eager", "graphs-sdpa"}
    assert "random" in sections["shapes"]["weights"]
    assert "random" in report["weights"]


def test_an_error_of_a_section_is_told_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(SCRIPT.parent), *sys.path])
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)

    def breaks(*_: object) -> dict[str, object]:
        raise RuntimeError("no\nkernel")

    monkeypatch.setitem(script.SECTIONS, "law", breaks)
    found = script.run("law", None, 1.0)
    assert found["passed"] is False
    assert found["error"] == "RuntimeError: no kernel"
