"""Which heads a file beside them was made for. Knows: the bytes of stored weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from entmtp.heads.format import WEIGHTS_NAME


def stored_fingerprint(folder: str | Path) -> str | None:
    """Names the weights that lie in a folder; None where there are none of ours.

    SHA-256 over the whole file: about a second for each gigabyte.

    Raises:
        OSError: the file cannot be read.
    """
    path = Path(folder) / WEIGHTS_NAME
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
