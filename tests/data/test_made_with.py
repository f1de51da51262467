"""A note beside work that cannot be read is no note."""

from __future__ import annotations

from pathlib import Path

import pytest

from entmtp.data.made_with import read_made_with, write_made_with


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_made_with(tmp_path / "note", {"seed": 3})
    assert read_made_with(tmp_path / "note") == {"seed": 3}
    assert read_made_with(tmp_path / "none") == {}


@pytest.mark.parametrize("text", ["", "[1]", '{"seed": NaN}', r'{"a": "\ud800"}', "[" * 100_000])
def test_what_is_no_note_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "note").write_text(text)
    assert read_made_with(tmp_path / "note") == {}
