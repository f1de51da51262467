"""The folder of a calibration's unfinished work: which files are ours, and what they are made with.

Knows: their names, the note beside them, who is at work. Does not know: what is in them, stages.

The note is there before the files and goes after them, so a kill at any moment leaves files with
their note, or none. Files without it are never used. What is not ours is never touched, and the
folder goes only when nothing is left in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from entmtp.data.lock import LOCK_NAME, alone_in
from entmtp.data.made_with import MadeWith, is_stale, read_made_with, write_made_with
from entmtp.errors import ArtefactError

NOTE_NAME = "made_with.json"
_WORK = re.compile(
    r"(answers-\d{5}|(ranks|draft)-[0-9a-f-]+-\d{5}|trace-[0-9a-f]+)\.safetensors"
    r"|((times|times-made-with)-\d+|live)-[0-9a-f]+\.json"
)


def work_folder(given: Path | None, out: Path) -> Path:
    """Where the work for `out` lies: in the folder that was given, else beside it."""
    return given or out.with_name(f"{out.name}.work")


@contextmanager
def at_work(given: Path | None, out: Path) -> Iterator[Path]:
    """The folder of the work for `out`, with no other run in it; it goes if nothing is left there.

    A folder that was given, and was there before, stays.

    Raises:
        BadInput: another calibration is at work there.
    """
    folder = work_folder(given, out)
    with alone_in(folder, "calibration", keep_empty=given is not None and given.exists()):
        yield folder


def is_ours(name: str) -> bool:
    """Whether a file of this name in a work folder is one that calibration makes there."""
    return name in (NOTE_NAME, LOCK_NAME) or _is_work(name.removeprefix("."))


def take_up(folder: Path, made_with: MadeWith, *, restart: bool) -> None:
    """Leave in the folder only work that was made with just this, with the note that says so.

    Args:
        restart: other work is made anew.

    Raises:
        ArtefactError: it is of something else, or nothing says what it was made with, and it is not
            to be made anew.
    """
    note = folder / NOTE_NAME
    if finished := [path.name for path in _work(folder) if not path.name.startswith(".")]:
        found = read_made_with(note)
        if not found and not restart:
            raise ArtefactError(
                f"{folder} has {finished[0]}, but no readable {NOTE_NAME} that says what it was"
                " made with; use another work folder, or pass --restart to make it anew"
            )
        if not found or is_stale(folder, found, made_with, restart=restart):
            discard(folder)
    write_made_with(note, made_with)


def discard(folder: Path) -> None:
    """Remove our files, the note last; all others stay."""
    for path in _work(folder):
        _remove(path)
    for name in (f".{NOTE_NAME}", NOTE_NAME):
        _remove(folder / name)


def _work(folder: Path) -> list[Path]:
    """Files of work in the folder, half-written ones too."""
    return sorted(path for path in folder.iterdir() if _is_work(path.name.removeprefix(".")))


def _is_work(name: str) -> bool:
    return _WORK.fullmatch(name) is not None


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
