"""What a stage's work was made with, and what to do when that is no longer what is asked for.

Knows: named values, a JSON file beside the work, and the flag that lets work go. Does not know:
stages.

Work that was made with other data or settings is never gone on with in silence: it is refused,
naming each change, or made anew where the user said `--restart`. Work that fits is kept then too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entmtp.data.strict_json import parse_json
from entmtp.data.whole import whole
from entmtp.errors import ArtefactError

MadeWith = Mapping[str, Any]
"""Names and JSON values that the outcome depends on."""

MAX_CHANGES = 6
"""Changes that a message names."""


def is_stale(path: Path, found: MadeWith, wanted: MadeWith, *, restart: bool) -> bool:
    """Whether the work in `path` must be made anew.

    Raises:
        ArtefactError: it must, and nobody said that it may be.
    """
    if not (changes := describe_changes(found, wanted)):
        return False
    if not restart:
        raise ArtefactError(
            f"{path} belongs to a run with other data or settings ({changes}); go on with those,"
            " use another work folder, or pass --restart to make it anew"
        )
    return True


def describe_changes(found: MadeWith, wanted: MadeWith) -> str:
    """Each value that differs, as `name old -> new`; empty where none does."""
    names = [name for name in {**wanted, **found} if found.get(name) != wanted.get(name)]
    shown = [f"{name} {found.get(name)} -> {wanted.get(name)}" for name in names[:MAX_CHANGES]]
    return ", ".join([*shown, *(["…"] if len(names) > MAX_CHANGES else [])])


def read_made_with(path: Path) -> dict[str, Any]:
    """What stands in a file beside the work; nothing where there is no readable one."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_made_with(path: Path, content: MadeWith) -> None:
    """Write it, whole or not at all."""
    with whole(path) as half:
        half.write_text(json.dumps(dict(content), indent=2) + "\n", encoding="utf-8")
