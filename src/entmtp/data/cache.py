"""The user's cache folder: a thing is in it whole, or not at all.

Knows: where the cache lies, how a folder is built beside its final place and renamed into it, and
the manifest by which a later run sees that the folder is complete and made by the same recipe.
Does not know: what the folders hold.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from entmtp.data.strict_json import parse_json
from entmtp.errors import FetchError

CACHE_VARIABLE = "ENTMTP_CACHE"
MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
_PART_SUFFIX = ".part"
_STALE_AFTER_SECONDS = 24 * 3600
_MAX_RENAMES = 5

Progress = Callable[[str], None]
"""Takes one line about what is happening; where it is shown is the caller's matter."""


def silent(_: str) -> None:
    """The `Progress` of a caller who wants to hear nothing."""


def cache_dir() -> Path:
    """`$ENTMTP_CACHE`, else the platform's cache folder."""
    if given := os.environ.get(CACHE_VARIABLE):
        return Path(given).expanduser()
    try:
        home = Path.home()
    except RuntimeError:
        raise FetchError(f"no home folder to keep a cache in; set {CACHE_VARIABLE}") from None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "entmtp"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "entmtp"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "entmtp"


def write_manifest(
    folder: Path, source: Mapping[str, str], versions: Mapping[str, str] | None = None
) -> None:
    """Record what `folder` was made from, and every file in it with its size.

    `source` decides later whether the folder is still the wanted one; `versions` only informs.
    """
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "source": dict(source),
        "versions": dict(versions or {}),
        "files": files,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def is_complete(folder: Path, source: Mapping[str, str]) -> bool:
    """Whether `folder` was made from `source` and still has every file at its full size."""
    try:
        manifest = parse_json((folder / MANIFEST).read_text(encoding="utf-8"))
        return bool(
            manifest["schema_version"] == SCHEMA_VERSION
            and manifest["source"] == dict(source)
            and all(
                (folder / name).stat().st_size == size for name, size in manifest["files"].items()
            )
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def new_folder(final: Path, source: Mapping[str, str]) -> Iterator[Path]:
    """Yield an empty folder that becomes `final` when the block ends well, and else disappears.

    Several processes may do this at once: the first complete folder stays.

    Raises:
        FetchError: the cache cannot be written to.
    """
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(final)
        part = _beside(final)
        part.mkdir()
    except OSError as error:
        raise _unwritable(final, error) from None
    try:
        yield part
        _open_to_readers(part)
        _put(part, final, source)
    except OSError as error:
        raise _unwritable(final, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _open_to_readers(part: Path) -> None:
    """Whoever may read the folder may read its files; safetensors makes some for their owner."""
    readable = part.stat().st_mode & 0o444
    for path in part.rglob("*"):
        path.chmod(path.stat().st_mode | readable)


def _put(part: Path, final: Path, source: Mapping[str, str]) -> None:
    """Rename `part` to `final`, replacing an incomplete one but not a complete one."""
    for _ in range(_MAX_RENAMES):
        if is_complete(final, source):
            return
        aside = _beside(final)
        # Missing is the usual case; otherwise another process moved it aside first.
        with suppress(FileNotFoundError):
            final.rename(aside)
        try:
            part.rename(final)
            return
        except OSError:
            if not final.exists():
                raise
        finally:
            _remove(aside)
    raise FileExistsError(f"{final} keeps changing")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_abandoned(final: Path) -> None:
    """Remove what a killed process left behind; a young one may still be at work."""
    for path in final.parent.glob(f".{final.name}.*{_PART_SUFFIX}"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_AFTER_SECONDS:
                _remove(path)


def _beside(final: Path) -> Path:
    """A name of its own on the same file system, so that a rename is one step."""
    return final.with_name(f".{final.name}.{uuid.uuid4().hex}{_PART_SUFFIX}")


def _unwritable(final: Path, error: OSError) -> FetchError:
    reason = error.strerror or str(error)
    return FetchError(
        f"cannot write {final.name} into the cache {final.parent}: {reason}; free some space or"
        f" set {CACHE_VARIABLE} to a folder you may write to"
    )
