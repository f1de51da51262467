"""Qwen2.5-Coder-0.5B: steps against rows, and plain and tree steps against llama.cpp's Q4_K_M.

    .venv/bin/python benchmarks/qwen.py --out RESULT.json

Each run (a runtime and number format) is loaded, measured and dropped before the next, for memory.
In a run, steps of all row counts take turns; then plain decoding, llama.cpp on the same 4-bit file
and a tree of 16 nodes answer the same prompts in turn, by token ids. **The heads are random**: a
step takes as long as with trained ones, but accepts next to nothing. So tokens per second of the
tree say nothing here; what is reported is its step, and the mean acceptance length from which on
it would beat plain decoding and llama.cpp. About 15 minutes on two cores; the first time some more
for a download of 480 MB and its conversion. A run that was ended goes on behind the last whole
runtime and format. Needs node and npm, as `peers/llama_cpp.py` does.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from kept import Kept, note, settings_of
from peers.gguf_files import qwen_checkpoint, qwen_gguf
from peers.llama_cpp import LLAMA, PLAIN, answer, interval_of
from peers.node_llama import LlamaCpp
from runtime_steps import ROWS, Timed

from entmtp.bench import Method, Task, load_workload, make_tasks
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads, HeadsConfig, build_heads, default_tree, locate_heads
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment, load_average

RUNS = ("native:int8", "openvino:int8", "openvino:bfloat16", "eager:bfloat16")
TREE = "tree of random heads"
NUM_DRAFT_HEADS, DRAFT_VOCAB_SIZE = 4, 8192


def main() -> int:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    if arguments.model is None:
        arguments.model, arguments.gguf = str(qwen_checkpoint(note)), qwen_gguf(note)
    settings = settings_of(arguments)
    kept = Kept(arguments.out, {key: one for key, one in settings.items() if key != "runs"})
    with LlamaCpp(arguments.gguf, arguments.threads, arguments.context + 512) as llama:
        for spec in arguments.runs:
            if spec not in kept.rows:
                kept.add(spec, one_run(spec, llama, arguments))
                gc.collect()
        description = llama.description
    content = {
        "runs": [kept.rows[spec] for spec in arguments.runs],
        "heads": "random Hydra heads, for times only",
        LLAMA: description | {"file": arguments.gguf.name},
        "settings": settings,
    }
    kept.finish(content)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="another checkpoint; then --gguf is llama.cpp's file of it")
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), metavar="RUNTIME:FORMAT")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--context", type=int, default=256, help="committed tokens of the rows")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--prompts", nargs="+", default=["packaged"])
    parser.add_argument("--limit", type=int, default=9)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if (arguments.model is None) != (arguments.gguf is None):
        parser.error("--model and --gguf go together")
    return arguments


@torch.inference_mode()
def one_run(spec: str, llama: LlamaCpp, arguments: argparse.Namespace) -> dict[str, Any]:
    """All of one runtime and format."""
    before = load_average()
    timed = Timed(spec, arguments.model, arguments.context, arguments.rows)
    timed.target.name = Path(arguments.model).name  # for the report
    time_rows(timed, arguments.repeats)
    methods = our_methods(timed.target)
    prompts = load_workload(arguments.prompts, arguments.limit)
    tasks = make_tasks(methods[0].engine, prompts)
    rows = answer_all(methods, llama, tasks, arguments.max_tokens)
    return {
        **timed.report(),
        **whole_steps(rows, methods[1].trees[0].num_nodes),
        "load_average": [before, load_average()],
        "environment": describe_environment(timed.target),
        "prompts": rows,
    }


def time_rows(timed: Timed, repeats: int) -> None:
    """All row counts in turn; the first time of each does not count."""
    for round_ in range(repeats + 1):
        for rows in timed.wall:
            timed.step(rows)
            if round_ == 0:
                timed.wall[rows].clear()
                timed.cpu[rows].clear()


def our_methods(target: TargetModel) -> list[Method]:
    tree = default_tree(locate_heads("hydra"))  # of 16 nodes; of another model, but as good a shape
    engine = Engine(target, random_heads(target), StaticPolicy(tree))
    return [Method(PLAIN, Engine(target)), Method(TREE, engine)]


def random_heads(target: TargetModel) -> DraftHeads:
    """Hydra heads of the shipped ones' shape that have learned nothing."""
    size = min(DRAFT_VOCAB_SIZE, target.vocab_size)
    sizes = (target.hidden_size, target.vocab_size, NUM_DRAFT_HEADS, 1, size)
    heads = build_heads(HeadsConfig("hydra", *sizes, "target"))
    if heads.draft_ids is not None:
        heads.draft_ids.copy_(torch.arange(size))
    heads.to(target.dtype)
    heads.bind(target)
    return heads.requires_grad_(False).eval()


def answer_all(
    methods: Sequence[Method], llama: LlamaCpp, tasks: Sequence[Task], max_tokens: int
) -> list[dict[str, Any]]:
    """Every prompt by all three; the first one once more beforehand, uncounted."""
    params = GenerationParams(max_tokens)
    answer(methods, llama, tasks[0], params)
    rows = []
    for index, task in enumerate(tasks):
        note(f"{index + 1}/{len(tasks)} {task.prompt_id}")
        order = methods if index % 2 == 0 else list(reversed(methods))
        rows.append(answer(order, llama, task, params))
    return rows


def whole_steps(rows: Sequence[dict[str, Any]], num_nodes: int) -> dict[str, Any]:
    """Medians over the prompts of what a step takes, draft included, and of their quotients."""
    sides = [row["sides"] for row in rows]
    timed = [one for one in sides if one[PLAIN]["step"] and one[TREE]["step"]]
    tree_over_plain = [one[TREE]["step"] / one[PLAIN]["step"] for one in timed]
    tree_over_llama = [one[TREE]["step"] / one[LLAMA]["decode"] for one in timed]
    return {
        "num_nodes": num_nodes,
        "step_milliseconds": {
            PLAIN: median(one[PLAIN]["step"] for one in timed),
            TREE: median(one[TREE]["step"] for one in timed),
            LLAMA: median(one[LLAMA]["decode"] for one in timed),
        },
        "plain over llama.cpp": interval_of(rows, PLAIN, LLAMA, "decode"),
        "acceptance_length_to_equal": {
            PLAIN: median(tree_over_plain),
            LLAMA: median(tree_over_llama),
        },
    }


if __name__ == "__main__":
    sys.exit(main())
