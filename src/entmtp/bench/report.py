"""A comparison as a table for people. Knows: figures and a terminal. Computes nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from entmtp.bench.best_tree import TreeChoice
from entmtp.bench.comparison import Comparison, MethodFigures
from entmtp.bench.identity import Difference
from entmtp.bench.methods import BASELINE
from entmtp.bench.rounding import MAX_RATIO
from entmtp.bench.verification import Verification

NOTHING = "-"
HEADINGS = (
    "method",
    "tok/s",
    "speed-up",
    "95 %",
    "tok/step",
    "nodes",
    "same",
    "ratio",
    "d/v/h %",
)
MAX_LISTED = 10


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The table, what its words mean, and every difference that is no rounding."""
    settings, machine = comparison.settings, comparison.environment
    table = figure_table(_title(comparison), HEADINGS)
    for figures in comparison.figures:
        table.add_row(*_row(figures))
    console.print(table)
    for line in (
        *_medians(comparison.figures),
        f"speed-up: over {BASELINE} in the same run, prefill included, with its 95 % interval;"
        f" {settings['speedup']}",
        "tok/step: mean acceptance length, the bonus token included",
        f"same: prompts whose every token equals {BASELINE}'s; ratio: the largest gap between two"
        " tokens at a first difference over the rounding error there"
        f" (up to {MAX_RATIO:g} it is rounding)",
        "d/v/h: draft, verify and host share of the time behind the first token",
        f"{machine['processor']}, {machine['num_threads']} threads, load"
        f" {machine['load_average_before']} before and {machine['load_average_after']} after",
    ):
        console.print(line, style="dim", highlight=False, markup=False)
    for one in comparison.faults[:MAX_LISTED]:
        console.print(describe_difference(one), style="bold red", highlight=False, markup=False)


def print_verification(
    verification: Verification, comparison: Comparison, console: Console
) -> None:
    """Where the outputs part, the gravest first, and the count of all."""
    if verification.differences:
        headings = ("prompt", "token", BASELINE, verification.method, "ratio", "verdict")
        table = figure_table(_title(comparison), headings)
        for one in verification.differences[:MAX_LISTED]:
            ids = (
                NOTHING if token is None else str(token) for token in (one.plain_id, one.token_id)
            )
            place = str(one.num_common)
            table.add_row(Text(one.prompt_id), place, *ids, shown(one.ratio), one.verdict)
        console.print(table)
        hidden = len(verification.differences) - MAX_LISTED
        if hidden > 0:
            console.print(f"and {hidden} more", style="dim", highlight=False)
    unjudged = f", {verification.num_unjudged} not judged" if verification.num_unjudged else ""
    console.print(
        f"{verification.num_identical} of {verification.num_prompts} prompts identical to"
        f" {BASELINE}; differences: {verification.num_rounding} rounding,"
        f" {verification.num_faults} faults{unjudged}",
        style="bold green" if verification.passed else "bold red",
        highlight=False,
    )


def print_choice(name: str, choice: TreeChoice, console: Console) -> None:
    """How the best static tree was found."""
    table = figure_table(
        f"{name}: trees timed on this machine; a plain step takes"
        f" {1000 * choice.plain_step_seconds:.1f} ms",
        ("drafts", "depth", "tok/step", "step ms", "expected speed-up"),
    )
    for row in choice.table:
        table.add_row(
            str(row.tree.num_draft_tokens),
            str(row.tree.depth),
            f"{row.mean_acceptance_length:.2f}",
            f"{1000 * row.step_seconds:.1f}",
            f"{row.tokens_per_second * choice.plain_step_seconds:.2f}x",
            style="bold" if row is choice.best else None,
        )
    console.print(table)


def choices_json(choices: Mapping[str, TreeChoice]) -> dict[str, object]:
    """The tables that trees were chosen from, as JSON values."""
    return {
        name: {
            "num_nodes": choice.best.tree.num_nodes,
            "paths": [list(path) for path in choice.best.tree.paths[1:]],
            "plain_step_milliseconds": _milliseconds(choice.plain_step_seconds),
            "candidates": [
                {
                    "num_nodes": row.tree.num_nodes,
                    "depth": row.tree.depth,
                    "mean_acceptance_length": row.mean_acceptance_length,
                    "step_milliseconds": _milliseconds(row.step_seconds),
                }
                for row in choice.table
            ],
        }
        for name, choice in choices.items()
    }


def _milliseconds(seconds: float) -> float | None:
    """None for what was never timed, which JSON has no number for."""
    return 1000 * seconds if math.isfinite(seconds) else None


def describe_difference(one: Difference) -> str:
    """One line about one difference."""
    if one.verdict == "unjudged":
        why = "in this number format nothing shows whether that is rounding"
    elif None in (one.plain_id, one.token_id):
        why = "one of the outputs ended, so this is a fault"
    elif one.ratio is None:
        why = "in float32 nothing may differ, in int8 nothing so near the start: this is a fault"
    else:
        why = f"the rounding ratio is {one.ratio:.1f}, above {MAX_RATIO:g}, so this is a fault"
    return (
        f"{one.method} differs from {BASELINE} on prompt {one.prompt_id} at token {one.num_common}"
        f" ({one.plain_id} became {one.token_id}): {why}"
    )


def _medians(figures: Sequence[MethodFigures]) -> Iterator[str]:
    """A line on the medians of the ratios, where there are enough of them."""
    told = [
        f"{one.name} {shown(one.speedup_median, 'x')}"
        f" [{shown(one.speedup_median_low)}, {shown(one.speedup_median_high)}]"
        for one in figures
        if one.name != BASELINE and one.speedup_median_low is not None
    ]
    if told:
        yield f"median of the prompts' speed-ups: {', '.join(told)}"


def _title(comparison: Comparison) -> str:
    settings, machine = comparison.settings, comparison.environment
    how = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}"
    limit = "no limit" if settings["max_tokens"] is None else f"{settings['max_tokens']} tokens"
    return (
        f"{machine['model']} in {machine['dtype']} on {machine['device']}:"
        f" {settings['num_prompts']} prompts, {limit} each at the most, {how}"
    )


def figure_table(title: str, headings: tuple[str, ...]) -> Table:
    """Narrow enough for 80 columns."""
    table = Table(
        box=box.SIMPLE_HEAD, title=title, title_justify="left", show_edge=False, padding=0
    )
    for heading in headings:
        is_name = heading in ("method", "prompts")
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=True)
    return table


def _row(figures: MethodFigures) -> tuple[str, ...]:
    interval = NOTHING
    if figures.name != BASELINE and figures.speedup_low is not None:
        interval = f"{shown(figures.speedup_low)}..{shown(figures.speedup_high)}"
    shares = (figures.draft_share, figures.verify_share, figures.host_share)
    return (
        figures.name,
        shown(figures.tokens_per_second, digits=1),
        shown(figures.speedup, "x"),
        interval,
        shown(figures.mean_acceptance_length),
        str(figures.num_nodes),
        f"{figures.num_identical}/{figures.num_prompts}",
        shown(figures.max_rounding_ratio),
        "/".join(NOTHING if part is None else f"{100 * part:.0f}" for part in shares),
    )


def shown(value: float | None, unit: str = "", digits: int = 2) -> str:
    """A figure with its unit; what does not exist is a dash."""
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"
