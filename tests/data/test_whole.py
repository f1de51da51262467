"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from entmtp.data.whole import whole


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with whole(path) as half:
        half.write_text("new")
        assert path.read_text() == "old"
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"file": "new"}


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_half_a_file_goes(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write() -> None:
        with whole(path) as half:
            half.write_text("ne")
            raise error

    with pytest.raises(error):
        write()
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"file": "old"}


def test_an_error_names_the_file_that_was_given(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "file", tmp_path):
        with pytest.raises(OSError, match=r".") as caught, whole(path) as half:
            half.write_text("new")
        assert caught.value.filename == str(path)
        assert caught.value.filename2 is None
    assert list(tmp_path.parent.glob(f".{tmp_path.name}")) == []


def test_an_error_about_something_else_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught, whole(tmp_path / "file"):
        (tmp_path / "elsewhere").read_text()
    assert caught.value.filename == str(tmp_path / "elsewhere")


def test_a_private_writers_file_may_be_read_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    with whole(tmp_path / "file") as half:
        half.write_text("new")
        half.chmod(0o600)
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode
