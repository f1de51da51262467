"""`entmtp bench`: every method beside plain decoding, in one run, by source and with intervals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from entmtp.bench import BASELINE, RECIPES, Comparison, Method, Task, make_tasks
from entmtp.bench.breakdown import REFERENCE, by_source, paired_ratios
from entmtp.bench.full_report import FullReport, print_full
from entmtp.bench.perplexity import answer_perplexities
from entmtp.bench.report import describe_difference, print_choice
from entmtp.cli.flags import AsJson
from entmtp.cli.methods import (
    MethodOptions,
    best_trees_json,
    compare_visibly,
    plan_methods,
    ready_methods,
)
from entmtp.cli.options import SamplingOptions, TargetOptions, with_options
from entmtp.cli.places import Place, check_file, check_overwrites
from entmtp.cli.session import busy, note, open_target
from entmtp.cli.workload import WorkloadOptions
from entmtp.data.whole import whole
from entmtp.engine import Engine, GenerationParams

DEFAULT_METHODS = (BASELINE, *RECIPES)
FAULT_FOUND = 1


@with_options
def run(
    target: TargetOptions,
    methods: MethodOptions,
    workload: WorkloadOptions,
    sampling: SamplingOptions,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the JSON object there, too.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every method of drafting, and plain decoding, on the same prompts in one run.

    Every prompt goes through every method in turn. default is Medusa's tree of 63 drafts, best the
    best static tree for this machine; the entmtp methods choose a tree for each step from a bank,
    and are left out without one. The figures come with 95 % intervals, over plain decoding and over
    hydra-best, for all prompts and for each source, and with the perplexity of the answers.

    Exit codes: 0 fine; 1 an answer differs from plain decoding's, and not by rounding; 2 wrong use
    or bad input; 130 interrupted.
    """
    if out is not None:
        place = Place("--out", out)
        check_file(place)
        check_overwrites([place], [*target.files(), *methods.files(), *workload.files()])
    lineup = plan_methods(methods, DEFAULT_METHODS)
    prompts = workload.load()
    params = GenerationParams(workload.max_tokens, sampling.sampling(default_seed=0))
    if lineup.left_out:
        note(
            f"note: left out without a bank of trees (--bank-{methods.heads} FILE):"
            f" {', '.join(lineup.left_out)}"
        )
    model = open_target(target, runtime=target.runtime)
    tasks = make_tasks(Engine(model), prompts)
    made, in_use = ready_methods(methods, lineup, model, tasks)
    report = _full(compare_visibly(made, tasks, params), made, tasks)
    console = Console()
    for owner, used in in_use.items():
        if used.choice is not None:
            print_choice(owner, used.choice, console)
    print_full(report, console)
    content = report.to_json()
    content["settings"] |= methods.to_json() | {
        "prompts": workload.prompts or ["packaged"],
        "reference": REFERENCE,
        "left_out": list(lineup.left_out),
    }
    content["best_trees"] = best_trees_json(in_use, methods)
    _hand_over(content, out, as_json)
    for fault in report.comparison.faults[:1]:
        note(f"entmtp: {describe_difference(fault)}")
        raise typer.Exit(FAULT_FOUND)


def _full(comparison: Comparison, methods: Sequence[Method], tasks: Sequence[Task]) -> FullReport:
    with busy("perplexity of the answers"):
        perplexities = answer_perplexities(
            methods[0].engine.target, tasks, comparison.runs, BASELINE
        )
    sources = by_source(comparison, methods, tasks)
    return FullReport(comparison, paired_ratios(comparison.runs), sources, perplexities)


def _hand_over(content: dict[str, Any], out: Path | None, as_json: bool) -> None:
    """Write and print the JSON, as asked for."""
    # A figure that does not exist is null; anything else that is no JSON is a fault of ours.
    text = json.dumps(content, allow_nan=False)
    if out is not None:
        with whole(out) as half:
            half.write_text(f"{text}\n", encoding="utf-8")
    if as_json:
        print(text, flush=True)
