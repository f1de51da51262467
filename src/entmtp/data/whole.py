"""Files that appear whole or not at all.

Knows: a file beside the place, and the rename. Does not know: what is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to: it becomes `path` if the block ends well, else it goes.

    Raises:
        OSError: it cannot be written; the error names `path`, which the user knows, not the file
            beside it.
    """
    half = path.with_name(f".{path.name}")
    try:
        yield half
        half.replace(path)
    except BaseException as error:
        with suppress(OSError):
            half.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(half):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
