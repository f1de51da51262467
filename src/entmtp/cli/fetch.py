"""`entmtp fetch`: the only verb whose purpose is the network."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from entmtp.cli.flags import AsJson
from entmtp.data.cache import Progress
from entmtp.data.humaneval import HUMANEVAL, fetch_humaneval
from entmtp.errors import BadInput
from entmtp.target.embedded import EMBEDDED, fetch_embedded

DEFAULT = next(iter(EMBEDDED))
DESCRIPTIONS = {
    **{name: model.description for name, model in EMBEDDED.items()},
    HUMANEVAL: "HumanEval's 164 prompts (MIT)",
}


def run(
    name: Annotated[
        str, typer.Argument(help="; ".join(f"{n}: {d}" for n, d in DESCRIPTIONS.items()))
    ] = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Bring the embedded model or a benchmark's prompts into the cache.

    What is there already is left as it is, and needs no network.
    """
    path = fetch(name, lambda line: print(line, file=sys.stderr, flush=True))
    print(f"{name}: {DESCRIPTIONS[name]}")
    print(f"in {path}")
    if as_json:
        found = {"name": name, "description": DESCRIPTIONS[name], "path": str(path)}
        print(json.dumps(found, allow_nan=False))


def fetch(name: str, progress: Progress) -> Path:
    """Bring the thing called `name`; return where it lies."""
    if name in EMBEDDED:
        return fetch_embedded(EMBEDDED[name], progress)
    if name == HUMANEVAL:
        return fetch_humaneval(progress)
    raise BadInput(f"nothing called {name!r} to fetch; there is {', '.join(DESCRIPTIONS)}")
