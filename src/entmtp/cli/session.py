"""From flags to a loaded engine, with something to see on standard error meanwhile.

Knows: flags, loaders, and the terminal. Does not know: verbs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from entmtp.cli.options import DraftOptions, TargetOptions, plan_drafts
from entmtp.data.cache import Progress
from entmtp.engine import Engine
from entmtp.heads import DraftHeads, load_heads
from entmtp.target import TargetModel
from entmtp.target.load import load_target, parse_device, parse_dtype


def note(line: str) -> None:
    """Tell the user something that is not a result."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def busy(what: str) -> Iterator[Progress]:
    """A spinner on a terminal's standard error; yields what to tell it about the progress."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield note
        return
    with console.status(f"{what} …") as status:
        yield lambda line: status.update(f"{what}: {line} …")


def open_target(options: TargetOptions, allow_plain: bool = False) -> TargetModel:
    """Load the model, after a look at the cheap flags."""
    parse_dtype(options.dtype)
    parse_device(options.device)
    with busy(f"loading {options.model}") as progress:
        return load_target(
            options.model,
            options.dtype,
            options.device,
            allow_plain=allow_plain,
            progress=progress,
        )


def open_heads(spec: str | Path, target: TargetModel) -> DraftHeads:
    """Load heads; what is odd about them becomes a line of its own."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        heads = load_heads(spec, target)
    for warning in caught:
        note(f"note: {warning.message}")
    return heads


def open_engine(target_options: TargetOptions, draft_options: DraftOptions) -> Engine:
    """The engine that the flags ask for. Contradictions are found before anything is loaded."""
    plan = plan_drafts(draft_options, target_options.model)
    target = open_target(target_options, draft_options.allow_plain)
    heads = None if plan.heads is None else open_heads(plan.heads, target)
    return Engine(target, heads, plan.policy, acceptance=plan.acceptance)
