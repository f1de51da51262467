"""Memory of this process. Knows: Linux's `/proc`. Does not know: what needs it."""

from __future__ import annotations

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Memory that is in use now; None where the system does not say."""
    if not _STATM.exists():
        return None
    return int(_STATM.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
