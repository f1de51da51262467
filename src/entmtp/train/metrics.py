"""The metrics of a run, one JSON object a line.

Knows: a file and steps. Does not know: what the figures mean.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from entmtp.data.strict_json import count, parse_json


class MetricsLog:
    """Appends; forgets what lies behind the step that a run resumes from."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, entry: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(entry, allow_nan=False) + "\n")

    def truncate(self, step: int) -> None:
        """Drop entries of later steps, and a line that a kill left half-written."""
        entries = [entry for entry in read_metrics(self._path) if entry["step"] <= step]
        if self._path.exists():
            half = self._path.with_name(f".{self._path.name}")
            half.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
            half.replace(self._path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole entries, each of a `step`; from the first line on that is none, nothing is."""
    entries: list[dict[str, Any]] = []
    if not path.exists():
        return entries
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entry = parse_json(line)
            count(entry["step"])
        except (ValueError, KeyError, TypeError):
            break
        entries.append(entry)
    return entries
