"""A cached folder is whole or absent, whatever happens on the way and whoever else is at it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from entmtp.data.cache import cache_dir, is_complete, new_folder, write_manifest
from entmtp.errors import FetchError

SOURCE = {"from": "somewhere"}


def make(final: Path, text: str = "content") -> None:
    with new_folder(final, SOURCE) as folder:
        (folder / "file").write_text(text)
        write_manifest(folder, SOURCE)


@pytest.fixture
def final(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "thing"


def test_cache_dir_is_where_the_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTMTP_CACHE", "~/there")
    assert cache_dir() == Path.home() / "there"
    monkeypatch.setenv("ENTMTP_CACHE", "")
    assert cache_dir().name == "entmtp"


def test_whole_or_absent(final: Path) -> None:
    make(final)
    assert is_complete(final, SOURCE)
    assert not is_complete(final, {"from": "elsewhere"})
    assert [path.name for path in final.parent.iterdir()] == ["thing"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, FetchError, MemoryError])
def test_failure_leaves_nothing(final: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with new_folder(final, SOURCE) as folder:
            (folder / "half").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert list(final.parent.iterdir()) == []


def test_failure_leaves_what_was_there(final: Path) -> None:
    make(final)
    with pytest.raises(KeyboardInterrupt), new_folder(final, SOURCE):
        raise KeyboardInterrupt
    assert is_complete(final, SOURCE)


@pytest.mark.parametrize("damage", ["cut", "removed", "manifest", "garbage"])
def test_damage_is_seen_and_repaired(final: Path, damage: str) -> None:
    make(final)
    if damage == "cut":
        (final / "file").write_text("con")
    elif damage == "removed":
        (final / "file").unlink()
    elif damage == "manifest":
        (final / "manifest.json").unlink()
    else:
        (final / "manifest.json").write_text('{"schema_version": 1, "source": []}')
    assert not is_complete(final, SOURCE)
    make(final)
    assert is_complete(final, SOURCE)
    assert [path.name for path in final.parent.iterdir()] == ["thing"]


def test_a_file_in_the_way_is_replaced(final: Path) -> None:
    final.parent.mkdir()
    final.write_text("not a folder")
    make(final)
    assert is_complete(final, SOURCE)


def test_the_first_of_two_at_once_stays(final: Path) -> None:
    with new_folder(final, SOURCE) as folder:
        (folder / "file").write_text("second")
        write_manifest(folder, SOURCE)
        make(final, "first")
    assert (final / "file").read_text() == "first"
    assert [path.name for path in final.parent.iterdir()] == ["thing"]


def test_leftovers_of_a_killed_process_go_when_old(final: Path) -> None:
    final.parent.mkdir()
    old, young = (final.parent / f".thing.{age}.part" for age in ("old", "young"))
    old.mkdir()
    young.mkdir()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    make(final)
    assert not old.exists()
    assert young.exists()


def test_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with (
        pytest.raises(FetchError, match=r"set ENTMTP_CACHE to a folder you may write to$"),
        new_folder(tmp_path / "cache" / "thing", SOURCE),
    ):
        pytest.fail("there is no folder to work in")


def test_a_private_writers_file_may_be_read_as_any_other(final: Path) -> None:
    with new_folder(final, SOURCE) as folder:
        (folder / "tensors").write_text("content")
        (folder / "tensors").chmod(0o600)
        write_manifest(folder, SOURCE)
    assert len({path.stat().st_mode for path in final.iterdir()}) == 1
