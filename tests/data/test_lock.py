"""One run at a time in a folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from entmtp.data.lock import LOCK_NAME, alone_in
from entmtp.errors import BadInput

HOLD = """
import sys
from pathlib import Path
from entmtp.data.lock import alone_in
with alone_in(Path(sys.argv[1]), "run", keep_empty=False):
    print("in", flush=True)
    sys.stdin.read()
"""


def enter(folder: Path, run: str = "run") -> None:
    with alone_in(folder, run, keep_empty=False):
        pass


def test_a_second_run_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "work"
    with alone_in(folder, "calibration", keep_empty=False):
        with pytest.raises(BadInput, match=r"another calibration is at work in .*a/work; wait"):
            enter(folder, "calibration")
        assert [path.name for path in folder.iterdir()] == [LOCK_NAME]
        enter(tmp_path / "other")
    assert not folder.exists()
    assert not (tmp_path / "other").exists()


def test_a_folder_with_something_in_it_stays_and_so_does_one_to_be_kept(tmp_path: Path) -> None:
    with alone_in(tmp_path / "full", "run", keep_empty=False):
        (tmp_path / "full" / "file").touch()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]
    with alone_in(tmp_path / "kept", "run", keep_empty=True):
        pass
    assert list((tmp_path / "kept").iterdir()) == []


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        assert holder.stdout.readline() == b"in\n"
        with pytest.raises(BadInput, match="another run is at work"):
            enter(folder)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    assert (folder / LOCK_NAME).exists()
    enter(folder)
    assert not folder.exists()
