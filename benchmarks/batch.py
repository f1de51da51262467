"""Total tokens per second of 8 sequences together against 1 at a time, each way of decoding.

    .venv/bin/python benchmarks/batch.py --out RESULT.json

In a round every method answers the same 8 prompts twice, one after the other and all together;
what comes first alternates from round to round, and each round has other prompts. A round's ratio
compares runs that stand next to one another in time. Reported are medians over the rounds with an
interval of order statistics: it holds the true median with the stated coverage, whatever the
distribution. `total` counts prefill in, which is done prompt by prompt in both cases; `decode` is
the tokens behind each first one over the time behind it. Needs a quiet machine; takes under five
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from entmtp.bench import (
    HeadsInUse,
    Method,
    Task,
    choose_tree,
    heads_needed,
    load_workload,
    make_methods,
    make_tasks,
    parse_methods,
)
from entmtp.engine import Engine, GenerationParams, Result
from entmtp.heads import load_heads, locate_heads, read_static_trees
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target

TOGETHER = 8
NUM_TRIALS = 2
MIN_COVERAGE = 0.95


class Rate(NamedTuple):
    """Tokens per second of one way of answering a round's prompts."""

    total: float
    decode: float
    num_tokens: int
    num_steps: int


def main() -> int:
    arguments = parse()
    target = load_target(arguments.model, arguments.dtype, runtime=arguments.runtime)
    tasks = make_tasks(Engine(target), load_workload(arguments.prompts))
    methods = prepare(target, parse_methods(arguments.methods), tasks)
    params = GenerationParams(arguments.max_tokens)
    for method in methods:  # warm-up
        answer(method, tasks[:TOGETHER], GenerationParams(min(4, arguments.max_tokens)), True)
    before = load_average()
    rounds: dict[str, list[tuple[Rate, Rate]]] = {method.name: [] for method in methods}
    for number in range(arguments.rounds):
        chosen = [tasks[(number * TOGETHER + i) % len(tasks)] for i in range(TOGETHER)]
        for method in methods:
            pair = one_round(method, chosen, params, together_first=number % 2 == 1)
            rounds[method.name].append(pair)
            print(f"round {number}: {method.name} {ratio(pair):.2f}x", file=sys.stderr, flush=True)
    content = {
        "methods": [summary(method, rounds[method.name]) for method in methods],
        "settings": vars(arguments) | {"out": arguments.out.name, "together": TOGETHER},
        "load_average_before": before,
        "load_average_after": load_average(),
        "environment": describe_environment(target),
    }
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runtime", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--methods", default="plain,medusa-best,hydra-best")
    parser.add_argument("--prompts", nargs="+", default=["packaged"])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    if arguments.max_tokens < 2 or arguments.rounds < 1:
        parser.error("give --max-tokens 2 or more and --rounds 1 or more")
    return arguments


def prepare(target: TargetModel, names: Sequence[str], tasks: Sequence[Task]) -> list[Method]:
    """The methods, with the static trees that are best for one sequence on this machine."""
    in_use = {}
    for owner, wants_best in heads_needed(names).items():
        folder = locate_heads(owner)
        heads = load_heads(folder, target)
        candidates = read_static_trees(folder)
        trials = tasks[:NUM_TRIALS]
        choice = choose_tree(target, heads, candidates, trials) if wants_best else None
        in_use[owner] = HeadsInUse(heads, choice)
    return make_methods(names, target, in_use)


def one_round(
    method: Method, tasks: Sequence[Task], params: GenerationParams, *, together_first: bool
) -> tuple[Rate, Rate]:
    """The same prompts one at a time and all together."""
    order = (True, False) if together_first else (False, True)
    rates = {together: answer(method, tasks, params, together) for together in order}
    return rates[False], rates[True]


def answer(method: Method, tasks: Sequence[Task], params: GenerationParams, together: bool) -> Rate:
    prompts = [task.prompt_ids for task in tasks]
    started = perf_counter()
    results: list[Result]
    if together:
        results = method.engine.generate_many(prompts, params)
    else:
        results = [method.engine.generate(prompt, params) for prompt in prompts]
    seconds = perf_counter() - started
    num_tokens = sum(len(result.token_ids) for result in results)
    prefill = sum(result.stats.prefill_seconds for result in results)
    decode = (num_tokens - len(results)) / (seconds - prefill)
    return Rate(num_tokens / seconds, decode, num_tokens, sum(r.stats.num_drafts for r in results))


def ratio(pair: tuple[Rate, Rate]) -> float:
    return pair[1].total / pair[0].total


def summary(method: Method, pairs: Sequence[tuple[Rate, Rate]]) -> dict[str, Any]:
    alone, together = zip(*pairs, strict=True)
    return {
        "name": method.name,
        "num_nodes": max(tree.num_nodes for tree in method.trees),
        "alone_tokens_per_second": interval([rate.total for rate in alone]),
        "together_tokens_per_second": interval([rate.total for rate in together]),
        "ratio": interval([ratio(pair) for pair in pairs]),
        "decode_ratio": interval([b.decode / a.decode for a, b in pairs]),
        "rounds": [{"alone": a._asdict(), "together": b._asdict()} for a, b in pairs],
    }


def interval(values: Sequence[float]) -> dict[str, float]:
    """Median, and the narrowest pair of order statistics that holds the true median with 95 %.

    Values i and n - 1 - i (0-based, sorted) hold it unless at most i of n lie on one side of it:
    with probability 1 - 2·sum_{j <= i} C(n, j) / 2^n. Of fewer than 6 values, the outermost.
    """
    ordered, count = sorted(values), len(values)
    place = 0
    while place + 1 < count / 2 and coverage(count, place + 1) >= MIN_COVERAGE:
        place += 1
    return {
        "median": median(ordered),
        "low": ordered[place],
        "high": ordered[count - 1 - place],
        "coverage": coverage(count, place),
    }


def coverage(count: int, place: int) -> float:
    return max(0.0, 1 - 2 * sum(math.comb(count, j) for j in range(place + 1)) / 2**count)


if __name__ == "__main__":
    sys.exit(main())
