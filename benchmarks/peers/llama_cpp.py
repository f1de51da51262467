"""llama.cpp's plain decoding of the same file against ours, prompt by prompt in turn.

    .venv/bin/python benchmarks/peers/llama_cpp.py --runtime native --dtype int8 \\
        --prompts HUMANEVAL GSM8K MT_BENCH --out RESULT.json

Three sides answer every prompt, greedily, on the same threads: our plain decoding, our heads with
their best static tree (timed here on packaged prompts), and llama.cpp (`node_llama`), which reads
the GGUF file that our checkpoint was made from and gets the same token ids. llama.cpp runs between
the other two, and which of those comes first alternates, so that every ratio is of neighbours.
We stop at the end of text; llama.cpp passes over its own and says as many tokens as the first
side did. `decode` is time per token behind the first one, prefill apart; `whole` counts it in.
Everything is warm. 60 prompts of 128 tokens take about 15 minutes; a run that was ended goes on
where it was (RESULT.json.part). Needs node, npm, and a network the first time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from kept import Kept, note, settings_of
from peers.gguf_files import embedded_gguf
from peers.node_llama import Answer, LlamaCpp

from entmtp.bench import (
    Method,
    Run,
    Task,
    choose_tree,
    load_workload,
    make_tasks,
    run_task,
    try_trees,
)
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import load_heads, locate_heads, read_static_trees
from entmtp.measure.statistics import geometric_mean_interval, median_interval
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target
from entmtp.trees import Tree

PLAIN, LLAMA = "plain", "llama.cpp"
NUM_TRIALS = 3
WARM_UP_TOKENS = 12
PAUSE_SECONDS = 0.2
"""Between two sides, so that no thread of the one still waits busily for work."""


def main() -> int:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    target = load_target(arguments.model, arguments.dtype, progress=note, runtime=arguments.runtime)
    engine = Engine(target)
    tasks = make_tasks(engine, load_workload(arguments.prompts, arguments.limit))
    kept = Kept(arguments.out, settings_of(arguments))
    methods = our_methods(target, arguments.heads, kept)
    gguf = arguments.gguf or embedded_gguf(arguments.model, note)
    context = max(len(task.prompt_ids) for task in tasks) + arguments.max_tokens + 8
    loads = [load_average()]
    with LlamaCpp(gguf, arguments.threads, context) as llama:
        answer_all(methods, llama, tasks, GenerationParams(arguments.max_tokens), kept)
        description = llama.description
    rows = [kept.rows[task.prompt_id] for task in tasks]
    content = {
        **summary(rows, [method.name for method in methods]),
        "tree": kept.rows["tree"],
        LLAMA: description | {"file": gguf.name},
        "settings": settings_of(arguments),
        "load_average": [*loads, load_average()],
        "environment": describe_environment(target),
        "prompts": rows,
    }
    kept.finish(content)
    for name, ratio in content["decode"].items():
        note("{}: {geometric_mean} [{low}, {high}]".format(name, **ratio["all"]))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--gguf", type=Path, help="llama.cpp's file; that of an embedded model")
    parser.add_argument("--runtime", default="native")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--heads", default="hydra")
    parser.add_argument("--prompts", nargs="+", default=["packaged"])
    parser.add_argument("--limit", type=int, default=60)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.max_tokens < 2:
        parser.error("give --max-tokens 2 or more")
    return arguments


def our_methods(target: TargetModel, heads_name: str, kept: Kept) -> list[Method]:
    """Plain decoding, and the heads with the tree that is best here (or was, at the first try)."""
    folder = locate_heads(heads_name)
    heads = load_heads(folder, target)
    if "tree" not in kept.rows:
        trials = make_tasks(Engine(target), load_workload(["packaged"], NUM_TRIALS))
        candidates = read_static_trees(folder) or try_trees(target, heads, trials)
        choice = choose_tree(target, heads, candidates, trials)
        kept.add(
            "tree",
            {
                "num_nodes": choice.best.tree.num_nodes,
                "step_milliseconds": 1e3 * choice.best.step_seconds,
                "plain_step_milliseconds": 1e3 * choice.plain_step_seconds,
                "expected_speedup": choice.expected_speedup,
                "tried": [
                    {
                        "num_nodes": row.tree.num_nodes,
                        "step_milliseconds": round(1e3 * row.step_seconds, 3),
                        "tokens_per_second": round(row.tokens_per_second, 2),
                    }
                    for row in choice.table
                ],
                "paths": [list(path) for path in choice.best.tree.paths if path],
            },
        )
    tree = Tree.from_paths(kept.rows["tree"]["paths"])
    note(f"best static tree: {tree.num_nodes} nodes")
    drafting = Engine(target, heads, StaticPolicy(tree))
    return [Method(PLAIN, Engine(target)), Method(f"{Path(heads_name).name}-best", drafting)]


def answer_all(
    methods: Sequence[Method],
    llama: LlamaCpp,
    tasks: Sequence[Task],
    params: GenerationParams,
    kept: Kept,
) -> None:
    short = GenerationParams(min(params.max_tokens or WARM_UP_TOKENS, WARM_UP_TOKENS))
    for _ in range(2):
        answer(methods, llama, tasks[0], short)
    for index, task in enumerate(tasks):
        if task.prompt_id not in kept.rows:
            order = methods if index % 2 == 0 else list(reversed(methods))
            kept.add(task.prompt_id, answer(order, llama, task, params))
            note(f"{index + 1}/{len(tasks)} {task.prompt_id}")


def answer(
    order: Sequence[Method], llama: LlamaCpp, task: Task, params: GenerationParams
) -> dict[str, Any]:
    """One prompt by one of ours, by llama.cpp, by the other of ours."""
    first = run_task(order[0], task, params)
    time.sleep(PAUSE_SECONDS)
    theirs = llama.generate(task.prompt_ids, max(2, len(first.token_ids)))
    time.sleep(PAUSE_SECONDS)
    second = run_task(order[1], task, params)
    time.sleep(PAUSE_SECONDS)
    drafting, plain = (second, first) if first.method == PLAIN else (first, second)
    sides = {run.method: of_ours(run) for run in (plain, drafting)} | {LLAMA: of_theirs(theirs)}
    return {
        "prompt_id": task.prompt_id,
        "source": task.prompt_id.partition("/")[0],
        "num_prompt_tokens": len(task.prompt_ids),
        "first": first.method,
        "sides": sides,
        "num_steps": drafting.stats.num_drafts,
        "num_accepted_tokens": drafting.stats.num_accepted_tokens,
        "is_identical": plain.token_ids == drafting.token_ids,
        "has_llama_cpp_s_first_token": plain.token_ids[:1] == theirs.token_ids[:1],
    }


def of_ours(run: Run) -> dict[str, Any]:
    times = side(len(run.token_ids), 1e3 * run.prefill_seconds, 1e3 * run.decode_seconds)
    steps = run.stats.num_drafts
    return times | {"step": round(1e3 * run.decode_seconds / steps, 4) if steps else None}


def of_theirs(answer: Answer) -> dict[str, Any]:
    steps = sum(answer.step_milliseconds)
    return side(len(answer.token_ids), answer.prefill_milliseconds, steps)


def side(num_tokens: int, prefill: float, decode: float) -> dict[str, Any]:
    """Milliseconds a token: `decode`, behind the first one, and `whole`, the prompt counted in."""
    behind = decode / (num_tokens - 1) if num_tokens > 1 else None
    whole = (prefill + decode) / num_tokens if num_tokens else None
    return {
        "num_tokens": num_tokens,
        "prefill_milliseconds": round(prefill, 3),
        "decode": behind and round(behind, 4),
        "whole": whole and round(whole, 4),
    }


def summary(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    plain, drafting = names
    pairs = ((drafting, plain), (drafting, LLAMA), (plain, LLAMA))
    steps = sum(row["num_steps"] for row in rows)
    accepted = sum(row["num_accepted_tokens"] for row in rows)
    return {
        **{
            part: {f"{ours} over {base}": speedups(rows, ours, base, part) for ours, base in pairs}
            for part in ("decode", "whole")
        },
        "milliseconds_a_token": {name: median_of(rows, name, "decode") for name in (*names, LLAMA)},
        "prefill_milliseconds": {
            name: median_of(rows, name, "prefill_milliseconds") for name in (*names, LLAMA)
        },
        "mean_acceptance_length": 1 + accepted / steps if steps else None,
        "num_prompts": len(rows),
        "num_identical": sum(row["is_identical"] for row in rows),
        "num_with_llama_cpp_s_first_token": sum(row["has_llama_cpp_s_first_token"] for row in rows),
    }


def speedups(rows: Sequence[dict[str, Any]], ours: str, base: str, part: str) -> dict[str, Any]:
    """How many times as fast: over all prompts, and by where they are from."""
    sources = dict.fromkeys(row["source"] for row in rows)
    groups = {"all": list(rows)}
    groups |= {one: [row for row in rows if row["source"] == one] for one in sources}
    return {name: interval_of(group, ours, base, part) for name, group in groups.items()}


def interval_of(rows: Sequence[dict[str, Any]], ours: str, base: str, part: str) -> dict[str, Any]:
    """Geometric mean and median of single prompts' ratios, each with its 95 % interval."""
    pairs = [(row["sides"][base][part], row["sides"][ours][part]) for row in rows]
    ratios = [theirs / mine for theirs, mine in pairs if theirs and mine]
    mean, middle = geometric_mean_interval(ratios), median_interval(ratios)
    return {
        "geometric_mean": mean.middle,
        "low": mean.low,
        "high": mean.high,
        "median": middle.middle,
        "median_low": middle.low,
        "median_high": middle.high,
        "num_prompts": len(ratios),
    }


def median_of(rows: Sequence[dict[str, Any]], name: str, part: str) -> float | None:
    values = [row["sides"][name][part] for row in rows if row["sides"][name][part] is not None]
    return median(values) if values else None


if __name__ == "__main__":
    sys.exit(main())
