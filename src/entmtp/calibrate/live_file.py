"""How far finalists have come, on disk: written whole behind every prompt.

Knows: the file. Does not know: engines, banks.

A file of other banks or settings, or one that cannot be read or was changed by anybody else, is no
error: times are measured anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from entmtp.calibrate.files import BROKEN, read_json, write_json
from entmtp.calibrate.finalists import Answered, Finalists, Round
from entmtp.errors import ArtefactError

SCHEMA_VERSION = 2


@dataclass
class Done:
    """Prompts that all finalists whose turn it was have answered."""

    made_with: Mapping[str, Any]
    """What the times depend on"""
    finalists: Finalists
    rounds: dict[int, Round] = field(default_factory=dict)
    """By row of the trace"""
    seconds: float = 0.0
    """That the answers took"""

    def of(self, rows: Sequence[int]) -> list[Round]:
        """Those of some rows, as far as they are done."""
        return [self.rounds[row] for row in rows if row in self.rounds]


def write_done(path: Path, done: Done) -> None:
    """Write it, whole or not at all."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "made_with": dict(done.made_with),
        "finalists": done.finalists._asdict(),
        "seconds": done.seconds,
        "rounds": [[row, dict(round_)] for row, round_ in done.rounds.items()],
    }
    write_json(path, content | {"digest": _digest(content)})


def read_done(path: Path, made_with: Mapping[str, Any]) -> Done | None:
    """What was done with just this; None if nothing was."""
    try:
        content = read_json(path, SCHEMA_VERSION)
        if content.pop("digest") != _digest(content):
            return None
        if content["made_with"] != dict(made_with):
            return None
        names = content["finalists"]
        return Done(
            made_with,
            Finalists(tuple(map(int, names["statics"])), tuple(map(str, names["policies"]))),
            {
                int(row): {name: Answered(*one) for name, one in round_.items()}
                for row, round_ in content["rounds"]
            },
            float(content["seconds"]),
        )
    except (*BROKEN, ArtefactError, AttributeError):
        return None


def _digest(content: Mapping[str, Any]) -> str:
    """Of all else in the file, as it is read back."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
