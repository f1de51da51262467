"""A comparison as a table for people. Knows: figures and a terminal. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from entmtp.bench.best_tree import TreeChoice
from entmtp.bench.comparison import Comparison, MethodFigures
from entmtp.bench.identity import Difference
from entmtp.bench.methods import BASELINE
from entmtp.bench.rounding import MAX_RATIO

NOTHING = "-"
MAX_LISTED = 10


def print_comparison(comparison: Comparison, console: Console) -> None:
    """The table, what its words mean, and every difference that is no rounding."""
    settings, machine = comparison.settings, comparison.environment
    table = Table(box=box.SIMPLE_HEAD, title=_title(comparison), title_justify="left")
    table.add_column("method")
    for heading in ("tokens/s", "speed-up (95 %)", "tokens/step", "nodes", "identical"):
        table.add_column(heading, justify="right")
    table.add_column("draft/verify/host", justify="right")
    for figures in comparison.figures:
        table.add_row(*_row(figures))
    console.print(table)
    for line in (
        f"speed-up over {BASELINE} in the same run: {settings['speedup']}; prefill included",
        "tokens/step: mean acceptance length, the bonus token included",
        f"identical: prompts whose every token equals {BASELINE}'s"
        + _rounding_words(comparison.differences),
        f"{machine['processor']}, {machine['num_threads']} threads, load"
        f" {machine['load_average_before']} before and {machine['load_average_after']} after",
    ):
        console.print(line, style="dim", highlight=False, markup=False)
    for one in comparison.faults[:MAX_LISTED]:
        console.print(describe_difference(one), style="bold red", highlight=False, markup=False)


def print_choice(name: str, choice: TreeChoice, console: Console) -> None:
    """How the best static tree was found."""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{name}: trees timed on this machine, plain step"
        f" {1000 * choice.plain_step_seconds:.1f} ms",
        title_justify="left",
    )
    for heading in ("drafts", "depth", "tokens/step", "step ms", "expected speed-up"):
        table.add_column(heading, justify="right")
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
            "plain_step_milliseconds": 1000 * choice.plain_step_seconds,
            "candidates": [
                {
                    "num_nodes": row.tree.num_nodes,
                    "depth": row.tree.depth,
                    "mean_acceptance_length": row.mean_acceptance_length,
                    "step_milliseconds": 1000 * row.step_seconds,
                }
                for row in choice.table
            ],
        }
        for name, choice in choices.items()
    }


def describe_difference(one: Difference) -> str:
    """One line about one difference."""
    if one.ratio is None:
        why = (
            "one of the outputs ended"
            if None in (one.plain_id, one.token_id)
            else "in float32 nothing may differ"
        )
    else:
        why = f"the rounding ratio is {one.ratio:.1f}, above {MAX_RATIO:g}"
    return (
        f"{one.method} differs from {BASELINE} on prompt {one.prompt_id} at token {one.num_common}"
        f" ({one.plain_id} became {one.token_id}): {why}, so this is a fault"
    )


def _title(comparison: Comparison) -> str:
    settings, machine = comparison.settings, comparison.environment
    how = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}"
    limit = "no limit" if settings["max_tokens"] is None else f"{settings['max_tokens']} tokens"
    return (
        f"{machine['model']} in {machine['dtype']} on {machine['device']}:"
        f" {settings['num_prompts']} prompts, {limit} each at the most, {how}"
    )


def _row(figures: MethodFigures) -> tuple[str, ...]:
    identical = f"{figures.num_identical} of {figures.num_prompts}"
    if figures.max_rounding_ratio is not None:
        identical += f" (ratio {figures.max_rounding_ratio:.2f})"
    speedup = _number(figures.speedup, "x")
    if figures.name != BASELINE and figures.speedup_low is not None:
        low, high = figures.speedup_low, figures.speedup_high
        speedup += f" [{_number(low)}, {_number(high)}]"
    shares = (figures.draft_share, figures.verify_share, figures.host_share)
    return (
        figures.name,
        _number(figures.tokens_per_second, digits=1),
        speedup,
        _number(figures.mean_acceptance_length),
        str(figures.num_nodes),
        identical,
        "/".join(NOTHING if part is None else f"{100 * part:.0f}" for part in shares) + " %",
    )


def _number(value: float | None, unit: str = "", digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}{unit}"


def _rounding_words(differences: tuple[Difference, ...]) -> str:
    if not differences:
        return ""
    return (
        "; ratio: largest gap between two tokens at a first difference, over the rounding error"
        f" there (up to {MAX_RATIO:g} it is rounding)"
    )
