"""Rows of a long measurement, kept as they come, so that a run that was ended goes on later.

Knows: a file of JSON lines beside the result. Does not know: what is measured.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any


class Kept:
    """The rows so far, each under its key; removed when the result is written."""

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        """Rows of an earlier run with the same `settings` count; those of another are dropped."""
        self._out = out
        self._part = out.with_name(f"{out.name}.part")
        self.rows: dict[str, Any] = {}
        head = json.dumps(settings, sort_keys=True)
        lines = self._part.read_text(encoding="utf-8").splitlines() if self._part.exists() else []
        if lines and lines[0] == head:
            for line in lines[1:]:
                try:
                    key, row = json.loads(line)
                except ValueError:  # the run was killed while it wrote
                    break
                self.rows[key] = row
            note(f"going on behind {len(self.rows)} rows of {self._part}")
        rows = [json.dumps(row) for row in self.rows.items()]
        self._part.write_text("\n".join([head, *rows]) + "\n", encoding="utf-8")

    def add(self, key: str, row: Any) -> None:
        self.rows[key] = row
        with self._part.open("a", encoding="utf-8") as part:
            part.write(json.dumps([key, row]) + "\n")

    def finish(self, content: dict[str, Any]) -> None:
        """Write the result, whole or not at all."""
        write_result(self._out, content)
        self._part.unlink()


def settings_of(arguments: Namespace) -> dict[str, Any]:
    """All flags but the output's, as JSON values; of a path its last part, which means the same
    on every machine."""
    return {key: _plain(value) for key, value in vars(arguments).items() if key != "out"}


def _plain(value: object) -> Any:
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, Path) or (isinstance(value, str) and "/" in value):
        return Path(value).name
    return value


def write_result(out: Path, content: dict[str, Any]) -> None:
    half = out.with_name(f".{out.name}")
    half.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    half.replace(out)


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
