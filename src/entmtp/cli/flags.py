"""Flags of verbs that must not wait for torch, as of all others."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object as the last line of output.")
]
