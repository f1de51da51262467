"""A comparison with all that was taken apart, as JSON values and as tables for people.

Knows: figures and a terminal. Computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from entmtp.bench.breakdown import REFERENCE, Ratios, Source, methods_json
from entmtp.bench.comparison import Comparison, MethodFigures
from entmtp.bench.methods import BASELINE
from entmtp.bench.perplexity import Perplexity
from entmtp.bench.report import NOTHING, figure_table, print_comparison, shown

_EVERYTHING = "all"


class FullReport(NamedTuple):
    """Everything that `entmtp bench` says."""

    comparison: Comparison
    ratios: Ratios
    sources: Sequence[Source]
    perplexities: Mapping[str, Perplexity]

    def to_json(self) -> dict[str, Any]:
        comparison = self.comparison
        more = {
            name: {
                "perplexity": one.value,
                "perplexity_ratio": one.ratio,
                "perplexity_ratio_low": one.ratio_low,
                "perplexity_ratio_high": one.ratio_high,
            }
            for name, one in self.perplexities.items()
        }
        return comparison.to_json() | {
            "methods": methods_json(comparison.figures, self.ratios, more),
            "sources": [source.to_json() for source in self.sources],
        }


def print_full(report: FullReport, console: Console) -> None:
    """The comparison, then speed by source, then where a step's time goes."""
    print_comparison(report.comparison, console)
    console.print()
    _print_sources(report, console)
    console.print()
    _print_steps(report, console)


def _print_sources(report: FullReport, console: Console) -> None:
    headings = (
        "prompts",
        "method",
        "tok/s",
        "speed-up",
        "95 %",
        "over best",
        "95 %",
    )
    table = figure_table(f"by source; over best: tokens per second over {REFERENCE}'s", headings)
    for source in _with_all(report):
        for figures in source.figures:
            ratio = source.ratios.get(figures.name, {})
            table.add_row(
                Text(source.name if figures is source.figures[0] else ""),
                figures.name,
                shown(figures.tokens_per_second, digits=1),
                shown(figures.speedup, "x"),
                _interval(figures.speedup_low, figures.speedup_high, figures.name == BASELINE),
                shown(ratio.get("ratio"), "x", digits=3),
                _interval(
                    ratio.get("ratio_low"), ratio.get("ratio_high"), figures.name == REFERENCE, 3
                ),
            )
        table.add_section()
    console.print(table)


def _with_all(report: FullReport) -> Iterator[Source]:
    if len(report.sources) != 1:
        yield Source(_EVERYTHING, report.comparison.figures, report.ratios)
    yield from report.sources


def _print_steps(report: FullReport, console: Console) -> None:
    headings = ("method", "draft ms", "verify ms", "host ms", "step ms", "perplexity", "ratio")
    table = figure_table("a step's time, and how likely the model finds the answers", headings)
    for figures in report.comparison.figures:
        table.add_row(*_step_row(figures, report.perplexities[figures.name]))
    console.print(table)
    console.print(
        f"ratio: of perplexity to {BASELINE}'s, geometric mean over prompts; equal answers have 1",
        style="dim",
        highlight=False,
        markup=False,
    )


def _step_row(figures: MethodFigures, perplexity: Perplexity) -> Iterator[str]:
    yield figures.name
    for milliseconds in (
        figures.draft_milliseconds,
        figures.verify_milliseconds,
        figures.host_milliseconds,
        figures.step_milliseconds,
    ):
        yield shown(milliseconds)
    yield shown(perplexity.value)
    yield shown(perplexity.ratio, digits=4)


def _interval(low: float | None, high: float | None, is_itself: bool, digits: int = 2) -> str:
    if is_itself or low is None:
        return NOTHING
    return f"{shown(low, digits=digits)}..{shown(high, digits=digits)}"
