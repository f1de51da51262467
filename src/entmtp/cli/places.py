"""What a command reads and what it writes: no output takes the place of an input or of another.

Knows: flags and paths. Does not know: verbs, what files hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from entmtp.errors import BadInput

_WRITTEN_BESIDE = "bank*.json"
"""What may be written anew in a folder of a model or of heads: a bank lies beside its heads"""


class Place(NamedTuple):
    """A path, and the flag that it was given by."""

    flag: str
    path: Path

    def __str__(self) -> str:
        return f"{self.flag} {self.path}"


def given(flag: str, *paths: str | Path | None) -> list[Place]:
    """Places of one flag, as far as it was given."""
    return [Place(flag, Path(path)) for path in paths if path]


def tree_files(flag: str, spec: str | None) -> list[Place]:
    """What a tree is read from: FILE or FILE:NAME."""
    return given(flag, spec, (spec or "").rpartition(":")[0])


def check_overwrites(writes: Iterable[Place], reads: Iterable[Place]) -> None:
    """Refuse outputs that take the place of something else. Names of no file are passed over.

    Args:
        reads: files, or folders of which any file may be read.

    Raises:
        BadInput: an output would overwrite an input, or two outputs are one file.
    """
    sources = [place for place in reads if os.path.exists(place.path)]  # noqa: PTH110  # any text
    seen: list[Place] = []
    for place in writes:
        for source in sources:
            if _is_part_of(place.path, source.path):
                raise BadInput(
                    f"{place} would overwrite what {source} reads; give the output another name"
                )
        for other in seen:
            if _is_same(place.path, other.path):
                raise BadInput(f"{other} and {place} are one file; give one of them another name")
        seen.append(place)


def check_file(place: Place) -> None:
    """Raises BadInput: no file can be put there, whatever came of the work."""
    if place.path.is_dir():
        raise BadInput(f"{place} is a folder; give the name of a file")
    folder = place.path.absolute().parent
    if not _can_be_written_to(folder):
        raise BadInput(f"{place}: there is no folder {folder} to write to; make it first")


def check_folder(place: Place) -> None:
    """Raises BadInput: files cannot be put into it, or it cannot be made."""
    if not place.path.exists():
        folder = place.path.absolute().parent
        if not _can_be_written_to(folder):
            raise BadInput(f"{place}: there is no folder {folder} to write to; make it first")
    elif not place.path.is_dir():
        raise BadInput(f"{place} is a file; give the name of a folder")
    elif not _can_be_written_to(place.path):
        raise BadInput(f"{place} may not be written to; give another folder")


def check_no_file_is_a_folder(files: Sequence[Place], folders: Iterable[Place]) -> None:
    """Raises BadInput: what is to be a file is also to be a folder, or to have files in it."""
    for folder in folders:
        for file in files:
            path = folder.path.resolve()
            if file.path.resolve() in (path, *path.parents):
                raise BadInput(
                    f"{file} is to be a file and {folder} a folder; give one of them another name"
                )


def check_apart(folder: Place, reads: Iterable[Place]) -> None:
    """Raises BadInput: a folder for new files is one that is read."""
    for source in reads:
        if _is_same(folder.path, source.path):
            raise BadInput(f"{folder} is the folder that {source} reads; give another one")


def _can_be_written_to(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)


def _is_part_of(path: Path, source: Path) -> bool:
    """Whether it is this file, or a file in this folder that a reader of the folder may want."""
    if _is_same(path, source):
        return True
    is_inside = source.is_dir() and source.resolve() in path.resolve().parents
    return is_inside and path.is_file() and not fnmatch(path.name, _WRITTEN_BESIDE)


def _is_same(one: Path, other: Path) -> bool:
    if one.resolve() == other.resolve():
        return True
    return one.exists() and other.exists() and one.samefile(other)
