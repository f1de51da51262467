"""`entmtp demo`: the main job on the embedded model, every method side by side."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

import typer
from rich.console import Console

from entmtp.bench import (
    BASELINE,
    Comparison,
    HeadsInUse,
    Method,
    Task,
    make_tasks,
)
from entmtp.bench.report import describe_difference, print_choice, print_comparison
from entmtp.cli.flags import AsJson
from entmtp.cli.methods import (
    MethodOptions,
    best_trees_json,
    compare_visibly,
    plan_methods,
    ready_methods,
)
from entmtp.cli.options import SamplingOptions, TargetOptions, with_options
from entmtp.cli.session import note, open_target
from entmtp.cli.stream import ShowDrafts, legend, show_answer
from entmtp.cli.workload import WorkloadOptions
from entmtp.data import Prompt
from entmtp.engine import Engine, GenerationParams

DEFAULT_METHODS = (BASELINE, "medusa-best", "hydra-best", "entmtp-tau")
FAULT_FOUND = 1


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
    lineup = plan_methods(methods, DEFAULT_METHODS)
    prompts = workload.load()
    params = GenerationParams(workload.max_tokens, sampling.sampling(default_seed=0))
    model = open_target(target, runtime=target.runtime)
    tasks = make_tasks(Engine(model), prompts)
    console = Console()
    made, in_use = ready_methods(methods, lineup, model, tasks)
    for owner, used in in_use.items():
        if used.choice is not None:
            print_choice(owner, used.choice, console)
    _show_one_answer(made, prompts[0], tasks[0], params)
    comparison = compare_visibly(made, tasks, params)
    print_comparison(comparison, console)
    if as_json:
        _print_json(comparison, in_use, methods)
    for fault in comparison.faults[:1]:
        note(f"entmtp: {describe_difference(fault)}")
        raise typer.Exit(FAULT_FOUND)


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


def _print_json(
    comparison: Comparison, in_use: Mapping[str, HeadsInUse], methods: MethodOptions
) -> None:
    content = comparison.to_json()
    content["settings"] |= methods.to_json()
    content["best_trees"] = best_trees_json(in_use, methods)
    # A figure that does not exist is null; anything else that is no JSON is a fault of ours.
    print(json.dumps(content, allow_nan=False))
    sys.stdout.flush()
