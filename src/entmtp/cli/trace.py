"""`entmtp trace`: look at the decisions that a run wrote down (`--trace-out`)."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from entmtp.cli.flags import AsJson
from entmtp.cli.places import check_overwrites, given
from entmtp.cli.stream import harmless
from entmtp.engine.decision_log import LoggedRun, LoggedStep, read_decisions
from entmtp.errors import BadInput

app = typer.Typer()
SHADES = (252, 194, 157, 114, 71, 65, 22)
"""Of a terminal's 256 colours, from plain decoding to the largest trees."""


@app.callback()
def trace() -> None:
    """Look at the decisions that a run wrote down with --trace-out."""


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What --trace-out has written.")],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PICTURE", help="Draw it into a .png or an .html instead (needs matplotlib)."
        ),
    ] = None,
    sample: Annotated[int, typer.Option(help="Which answer, where there are several.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the text coloured by the size of each step's tree, and how the steps went."""
    if out is not None:
        check_overwrites(given("--out", out), given("FILE", file))
    logged = read_decisions(file)
    run = logged.of_sample(sample)
    if not run.steps:
        raise BadInput(f"{file} has no answer {sample}; it has {_samples(logged)}")
    if out is not None:
        from entmtp.bench.decision_picture import draw_decisions

        draw_decisions(run, out)
        print(f"{out}: {summary(run)}", file=sys.stderr)
    else:
        print("".join(shaded(step) for step in run.steps))
        print(summary(run))
    if as_json:
        print(json.dumps(figures(run), allow_nan=False))


def _samples(run: LoggedRun) -> str:
    found = sorted({step.sample for step in run.steps})
    return ", ".join(map(str, found)) if found else "none"


def shaded(step: LoggedStep) -> str:
    """A step's text, in colour on a terminal that wants it."""
    if not sys.stdout.isatty():
        return step.text
    text = harmless(step.text)
    if os.environ.get("NO_COLOR") or step.num_nodes is None or not text:
        return text
    shade = SHADES[min((step.num_nodes - 1).bit_length(), len(SHADES) - 1)]
    letters = 255 if shade < 100 else 16
    return f"\x1b[48;5;{shade};38;5;{letters}m{text}\x1b[0m"


def figures(run: LoggedRun) -> Mapping[str, object]:
    """How the steps went."""
    steps = [step for step in run.steps if step.num_nodes is not None]
    counts = Counter(step.num_nodes for step in steps if step.num_nodes is not None)
    expected = [step.expected_accepted for step in steps if step.expected_accepted is not None]
    return {
        "num_steps": len(steps),
        "num_steps_by_rows": {str(rows): counts[rows] for rows in sorted(counts)},
        "mean_accepted": sum(step.num_accepted for step in steps) / max(len(steps), 1),
        "mean_expected": sum(expected) / len(expected) if expected else None,
    }


def summary(run: LoggedRun) -> str:
    """The figures, for people."""
    found = figures(run)
    rows = found["num_steps_by_rows"]
    assert isinstance(rows, dict)
    sizes = ", ".join(f"{size} in {count}" for size, count in rows.items())
    expected = found["mean_expected"]
    told = "" if expected is None else f" ({expected:.2f} expected)"
    return (
        f"{found['num_steps']} steps, {found['mean_accepted']:.2f} drafts accepted a step{told};"
        f" rows verified: {sizes or 'none'}"
    )
