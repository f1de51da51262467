"""`entmtp demo`: the main job on the embedded model, every method side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from entmtp.bench import (
    BASELINE,
    RECIPES,
    Comparison,
    HeadsInUse,
    Method,
    Run,
    Task,
    TreeChoice,
    choose_tree,
    compare,
    heads_needed,
    make_methods,
    make_tasks,
    parse_methods,
    try_trees,
)
from entmtp.bench.report import choices_json, describe_difference, print_choice, print_comparison
from entmtp.cli.bars import progress_bar
from entmtp.cli.flags import AsJson
from entmtp.cli.options import SamplingOptions, TargetOptions, with_options
from entmtp.cli.session import busy, note, open_heads, open_target
from entmtp.cli.stream import ShowDrafts, legend, show_answer
from entmtp.cli.workload import WorkloadOptions
from entmtp.data import Prompt
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import locate_heads, read_static_trees
from entmtp.target import TargetModel

DEFAULT_METHODS = f"{BASELINE},medusa-best,hydra-best"
FAULT_FOUND = 1
NUM_TRIALS = 4


@dataclass(frozen=True)
class MethodOptions:
    """Who takes part."""

    methods: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help=f"Of {BASELINE}, {', '.join(RECIPES)}; {BASELINE} always takes part.",
        ),
    ] = DEFAULT_METHODS
    medusa: Annotated[str, typer.Option(metavar="NAME|PATH", help="The Medusa heads.")] = "medusa"
    hydra: Annotated[str, typer.Option(metavar="NAME|PATH", help="The Hydra heads.")] = "hydra"
    pad_rows: Annotated[
        bool,
        typer.Option(
            "--pad-rows",
            help="Pad every verification, plain decoding's too, to the rows of the largest tree:"
            " in 16 bits all then go through the same kernels.",
        ),
    ] = False

    def specs(self) -> dict[str, str]:
        return {"medusa": self.medusa, "hydra": self.hydra}


@with_options
def run(
    target: TargetOptions,
    methods: MethodOptions,
    workload: WorkloadOptions,
    sampling: SamplingOptions,
    as_json: AsJson = False,
) -> None:
    """Answer real prompts plainly, with Medusa heads and with Hydra heads, and compare.

    Every prompt goes through every method in turn. The table says how fast each one was and how
    many answers came out identical to plain decoding. In float32 all must; in 16 bits each first
    difference is proved to be rounding, or the exit code is 1.
    """
    names = parse_methods(methods.methods)
    folders = {owner: locate_heads(methods.specs()[owner]) for owner in heads_needed(names)}
    prompts = workload.load()
    params = GenerationParams(workload.max_tokens, sampling.sampling(default_seed=0))
    model = open_target(target, runtime=target.runtime)
    tasks = make_tasks(Engine(model), prompts)
    console = Console()
    in_use = {
        owner: _prepare(model, folders[owner], tasks, wants_best)
        for owner, wants_best in heads_needed(names).items()
    }
    made = make_methods(names, model, in_use, pad_rows=methods.pad_rows)
    choices = {owner: used.choice for owner, used in in_use.items() if used.choice is not None}
    for owner, choice in choices.items():
        print_choice(owner, choice, console)
    _show_one_answer(made, prompts[0], tasks[0], params)
    comparison = _compare(made, tasks, params)
    print_comparison(comparison, console)
    if as_json:
        _print_json(comparison, choices, methods)
    for fault in comparison.faults[:1]:
        note(f"entmtp: {describe_difference(fault)}")
        raise typer.Exit(FAULT_FOUND)


def _prepare(
    target: TargetModel, folder: Path, tasks: Sequence[Task], wants_best: bool
) -> HeadsInUse:
    """Load heads and, where a method wants it, find their best static tree here."""
    heads = open_heads(folder, target)
    if not wants_best:
        return HeadsInUse(heads)
    with busy(f"timing trees of {folder.name}"):
        candidates = read_static_trees(folder) or try_trees(target, heads, tasks[:NUM_TRIALS])
        return HeadsInUse(heads, choose_tree(target, heads, candidates, tasks[:NUM_TRIALS]))


def _show_one_answer(
    methods: Sequence[Method], prompt: Prompt, task: Task, params: GenerationParams
) -> None:
    """The first prompt, answered plainly and by the last method, for people to see."""
    print(f"\n{prompt.text.strip()}\n")
    legend()
    tokenizer = methods[0].engine.target.tokenizer
    for method in (methods[0], *methods[1:][-1:]):
        print(f"\n--- {method.name}")
        events = method.engine.stream(task.prompt_ids, params)
        result = show_answer(events, ShowDrafts(tokenizer, params.stop))
        speed = result.stats.tokens_per_second
        print("" if speed is None else f"\n--- {method.name}: {speed:.1f} tokens/s", flush=True)
    print()


def _compare(
    methods: Sequence[Method], tasks: Sequence[Task], params: GenerationParams
) -> Comparison:
    with progress_bar("answers", len(methods) * len(tasks), is_transient=True) as update:

        def on_run(run: Run) -> None:
            update(advance=1, description=f"answers ({run.method})")

        return compare(methods, tasks, params, on_run)


def _print_json(
    comparison: Comparison, choices: dict[str, TreeChoice], methods: MethodOptions
) -> None:
    content = comparison.to_json()
    content["settings"] |= {"pad_rows": methods.pad_rows, "heads": methods.specs()}
    content["best_trees"] = choices_json(choices)
    # A figure that does not exist is null; anything else that is no JSON is a fault of ours.
    print(json.dumps(content, allow_nan=False))
    sys.stdout.flush()
