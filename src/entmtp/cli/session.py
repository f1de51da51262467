"""From flags to a loaded engine, with something to see on standard error meanwhile.

Knows: flags, loaders, and the terminal. Does not know: verbs.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from entmtp.cli.collection import no_collection
from entmtp.cli.options import DraftOptions, LoadOptions, TargetOptions
from entmtp.cli.plan import DraftPlan, plan_drafts
from entmtp.data import OnBadLine, SkippedLines
from entmtp.data.cache import Progress
from entmtp.engine import Engine
from entmtp.engine.made_for import made_for
from entmtp.engine.shipped_bank import machine_note, serves
from entmtp.heads import DraftHeads, load_heads
from entmtp.scheduler import Recorded, TreePolicy
from entmtp.target import TargetModel
from entmtp.target.load import load_target, parse_device, parse_dtype
from entmtp.target.runtimes import parse_runtime


def note(line: str) -> None:
    """Tell the user something that is not a result."""
    print(line, file=sys.stderr, flush=True)


def note_skipped(on_bad: OnBadLine) -> None:
    """Tell of lines that `--skip-bad-lines` left out."""
    if isinstance(on_bad, SkippedLines) and (summary := on_bad.summary()):
        note(f"note: {summary}")


@contextmanager
def busy(what: str) -> Iterator[Progress]:
    """A spinner on a terminal's standard error; yields what to tell it about the progress."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield note
        return
    with console.status(f"{what} …") as status:
        yield lambda line: status.update(f"{what}: {line} …")


def open_target(
    options: LoadOptions, allow_plain: bool = False, runtime: str = "eager"
) -> TargetModel:
    """Load the model, after a look at the cheap flags."""
    parse_dtype(options.dtype)
    parse_runtime(runtime, options.dtype, parse_device(options.device).type)
    with busy(f"loading {options.model}") as progress:
        return load_target(
            options.model,
            options.dtype,
            options.device,
            allow_plain=allow_plain,
            progress=progress,
            runtime=runtime,
        )


def open_heads(spec: str | Path, target: TargetModel) -> DraftHeads:
    """Load heads; what is odd about them becomes a line of its own."""
    with warnings_as_notes():
        return load_heads(spec, target)


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """What is odd becomes a line of its own, at once."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        note(f"note: {message}")

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _fitting(
    plan: DraftPlan, options: DraftOptions, target: TargetModel, heads: DraftHeads
) -> TreePolicy:
    """The planned policy, if its bank is right for what was loaded.

    Raises:
        ArtefactError: it is not, and it was asked for.
    """
    if not plan.banks:
        return plan.policy
    wanted = made_for(target, heads)
    if not plan.is_shipped:
        plan.banks[0].bank.check_made_for(wanted, str(options.bank))
        return plan.policy
    for bank, policy in plan.banks:
        if serves(bank, wanted):
            if told := machine_note(bank, wanted):
                note(told)
            return policy
    if plan.without_bank is None:
        plan.banks[0].bank.check_made_for(wanted, "the bank that ships with these heads")
    assert plan.without_bank is not None, "a bank that fits is used"
    return plan.without_bank


def open_engine(
    target_options: TargetOptions, draft_options: DraftOptions, *, is_recorded: bool = False
) -> Engine:
    """The engine that the flags ask for. Contradictions are found before anything is loaded.

    Args:
        is_recorded: its steps also read what only records need.

    Raises:
        ArtefactError: the bank was made for something else than what is loaded.
    """
    with no_collection():
        return _open_engine(target_options, draft_options, is_recorded)


def _open_engine(
    target_options: TargetOptions, draft_options: DraftOptions, is_recorded: bool
) -> Engine:
    plan = plan_drafts(draft_options, target_options.model)
    target = open_target(target_options, draft_options.allow_plain, target_options.runtime)
    heads = None if plan.heads is None else open_heads(plan.heads, target)
    fitting = plan.policy if heads is None else _fitting(plan, draft_options, target, heads)
    policy = Recorded(fitting) if is_recorded else fitting
    with busy("making steps ready"):
        return Engine(target, heads, policy, acceptance=plan.acceptance)
