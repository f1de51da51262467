"""One run at a time in a folder, by a lock that dies with its process.

Knows: the lock's file in the folder, the locks of the operating system. Does not know: what the
runs do there.

The lock is on an open file, so a run that was killed holds none; the file that it leaves means
nothing. Where the system or the file system has no such locks, nobody is refused.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from entmtp.errors import BadInput

if sys.platform != "win32":
    import fcntl

LOCK_NAME = ".entmtp-lock"


@contextmanager
def alone_in(folder: Path, run: str, *, keep_empty: bool) -> Iterator[None]:
    """Hold the folder, which is made where it is not there.

    Args:
        run: what a message calls the run: "calibration".
        keep_empty: whether the folder stays if nothing is left in it.

    Raises:
        BadInput: another run holds it.
    """
    lock = _take(folder, run)
    try:
        yield
    finally:
        if lock is not None:
            # While it is held: whoever opened the file by now finds that it is not there any more.
            (folder / LOCK_NAME).unlink(missing_ok=True)
            lock.close()
        if not keep_empty:
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def _take(folder: Path, run: str) -> IO[str] | None:
    """The locked file; None where there are no locks."""
    path = folder / LOCK_NAME
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            return None
        try:
            file = path.open("a")
        except FileNotFoundError:
            continue  # a run that has just ended took the folder with it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise BadInput(
                f"another {run} is at work in {folder}; wait until it has ended, or give this one"
                " a --work folder of its own"
            ) from None
        except OSError:
            return file  # this file system has no locks
        if _lies_at(path, file):
            return file
        file.close()


def _lies_at(path: Path, file: IO[str]) -> bool:
    """Whether the open file is still the one of that name."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
