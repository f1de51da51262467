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

    Whoever may read other new files may read it, too, also where the block's writer makes its files
    for their owner alone, as safetensors does.

    Raises:
        OSError: it cannot be written; the error names `path`, which the user knows, not the file
            beside it.
    """
    half = path.with_name(f".{path.name}")
    try:
        half.touch()
        usual = half.stat().st_mode
        yield half
        half.chmod(usual)
        half.replace(path)
    except BaseException as error:
        with suppress(OSError):
            half.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(half):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
