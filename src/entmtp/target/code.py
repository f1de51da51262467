"""Which code finds things out about a model: what it found is not what other code would find.

Knows: the sources of this room and of what is below it, and the versions of what they stand on.
Does not know: what is found.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
_ROOMS = ("target", "trees")
_STANDS_ON = ("torch", "transformers")


@cache
def code_digest() -> str:
    """SHA-256 over every source file, and over the versions."""
    digest = hashlib.sha256(" ".join(map(version, _STANDS_ON)).encode())
    for room in _ROOMS:
        for path in sorted((_PACKAGE / room).rglob("*.py")):
            digest.update(str(path.relative_to(_PACKAGE)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
