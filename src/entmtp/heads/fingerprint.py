"""Which heads these are: by the bytes of a file, or by the weights in memory.

Knows: stored and loaded weights. Does not know: who asks.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from entmtp.heads.base import DraftHeads
from entmtp.heads.format import WEIGHTS_NAME
from entmtp.target.fingerprint import fingerprint


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


def heads_fingerprint(heads: DraftHeads) -> str:
    """Names loaded heads, whatever layout they came from; the same in float32 and bfloat16."""
    ids = None if heads.draft_ids is None else heads.draft_ids.tolist()
    digest = hashlib.sha256(json.dumps(ids).encode()).hexdigest()
    return fingerprint(heads, {**asdict(heads.config), "draft_ids": digest})
