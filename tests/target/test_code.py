"""What was found by other code is not what this code would find."""

from __future__ import annotations

from pathlib import Path

import pytest

from entmtp.target import code


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for room in ("target/runtimes", "trees", "cli"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "a.py").write_text("a = 1")
    monkeypatch.setattr(code, "_PACKAGE", tmp_path)
    return tmp_path


def digest() -> str:
    code.code_digest.cache_clear()
    try:
        return code.code_digest()
    finally:
        code.code_digest.cache_clear()


def test_a_change_below_is_other_code_and_one_above_is_not(package: Path) -> None:
    before = digest()
    (package / "cli" / "a.py").write_text("a = 2")
    assert digest() == before
    for file in ("trees/a.py", "target/runtimes/a.py", "target/b.py"):
        (package / file).write_text("a = 3")
        assert digest() != before
        before = digest()


def test_other_versions_are_other_code(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    monkeypatch.setattr(code, "version", lambda name: f"{name} 0")
    assert digest() != before
