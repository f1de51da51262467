"""Thousands of steps, another tree in each: does any take far longer, does memory grow?

    .venv/bin/python benchmarks/long_run.py --runtime native --dtype int8 --out RESULT.json

One sequence at a time answers packaged prompts, ends of text passed over. A policy draws each
step's tree from a bank of eight of the heads' own, never the same twice running. Timed is
`Engine.step`, draft and acceptance included; a step that lets a new request in has its prefill in
it and is kept apart. The law of issue 4: no step longer than five times the median, and memory
flat. Processor time stands beside the worst steps: where it is much less than the wall clock's,
something else had the machine. 10,000 steps take about 8 minutes on two cores.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from kept import note, settings_of, write_result
from memory import resident_bytes

from entmtp.bench import Task, load_workload, make_tasks
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import load_heads, locate_heads, read_static_trees
from entmtp.scheduler import TreePolicy
from entmtp.scheduler.base import Selection, Signals
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target
from entmtp.trees import Tree, chain, medusa_63

NUM_TREES = 8
MAX_RATIO = 5.0
MAX_GROWTH = 0.02
"""Of the memory, from a tenth of the way to the end, along the fitted line."""
NUM_WORST = 20
NUM_SAMPLES = 200


class Step(NamedTuple):
    """One step of one sequence."""

    wall: float  # milliseconds
    cpu: float  # milliseconds of all threads
    num_nodes: int
    num_tokens: int
    """Committed before it"""


class SwitchingPolicy(TreePolicy):
    """Another tree of the bank in every step."""

    name = "switching"

    def __init__(self, trees: Sequence[Tree]) -> None:
        self.trees = tuple(trees)
        self.latest = self.trees[0]

    def begin(self, seed: int) -> Selection:
        return _Switching(self, random.Random(seed))


class _Switching(Selection):
    def __init__(self, policy: SwitchingPolicy, draw: random.Random) -> None:
        self._policy, self._draw = policy, draw

    def widest(self, signals: Signals) -> Tree:
        others = [tree for tree in self._policy.trees if tree != self._policy.latest]
        self._policy.latest = self._draw.choice(others)
        return self._policy.latest


def main() -> int:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    target = load_target(arguments.model, arguments.dtype, progress=note, runtime=arguments.runtime)
    folder = locate_heads(arguments.heads)
    heads = load_heads(folder, target)
    policy = SwitchingPolicy(bank(folder, heads.num_draft_heads))
    engine = Engine(target, heads, policy)
    tasks = make_tasks(engine, load_workload(arguments.prompts))
    loads = [load_average()]
    steps, memory, num_prefills = run(engine, policy, tasks, arguments)
    content = {
        **judge(steps, memory),
        "num_prefills": num_prefills,
        "num_nodes_of_trees": [tree.num_nodes for tree in policy.trees],
        "settings": settings_of(arguments),
        "load_average": [*loads, load_average()],
        "environment": describe_environment(target),
    }
    write_result(arguments.out, content)
    note(f"worst {content['worst_over_median']:.2f}x the median; {content['memory']['growth']}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runtime", default="native")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--heads", default="hydra")
    parser.add_argument("--prompts", nargs="+", default=["packaged"])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--max-tokens", type=int, default=512, help="of one answer")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def bank(folder: Path, num_draft_heads: int) -> list[Tree]:
    """Eight of the heads' own trees, small to large; else chains and parts of Medusa's tree."""
    trees = [entry.tree for entry in read_static_trees(folder)]
    if len(trees) < NUM_TREES:
        wide = medusa_63().paths
        trees = [chain(length) for length in range(1, num_draft_heads + 1)]
        trees += [
            Tree(wide[:size]).truncate(num_draft_heads) for size in (6, 8, 10, 12, 16, 24, 32)
        ]
        trees = list(dict.fromkeys(trees))
    places = np.linspace(0, len(trees) - 1, NUM_TREES).round().astype(int)
    return [trees[place] for place in places]


def run(
    engine: Engine, policy: SwitchingPolicy, tasks: Sequence[Task], arguments: argparse.Namespace
) -> tuple[list[Step], list[tuple[int, int]], int]:
    """The steps, memory against their number, and how many prefills lay between them."""
    params = GenerationParams(arguments.max_tokens, ignore_eos=True)
    steps: list[Step] = []
    memory: list[tuple[int, int]] = []
    every = max(1, arguments.steps // NUM_SAMPLES)
    for num_prefills, task in enumerate(cycle(tasks), start=1):
        request = engine.add(task.prompt_ids, params)
        engine.step()
        while engine.num_running and len(steps) < arguments.steps:
            steps.append(one_step(engine, policy))
            if len(steps) % every == 0 and (resident := resident_bytes()) is not None:
                memory.append((len(steps), resident))
        engine.forget(request)
        if len(steps) >= arguments.steps:
            return steps, memory, num_prefills
        note(f"{len(steps)} of {arguments.steps} steps")
    raise AssertionError("tasks go round for ever")


def one_step(engine: Engine, policy: SwitchingPolicy) -> Step:
    num_tokens = engine.cache_lengths[0]
    wall, cpu = perf_counter(), process_time()
    engine.step()
    wall, cpu = perf_counter() - wall, process_time() - cpu
    return Step(1e3 * wall, 1e3 * cpu, policy.latest.num_nodes, num_tokens)


def judge(steps: Sequence[Step], memory: Sequence[tuple[int, int]]) -> dict[str, Any]:
    middle = median(step.wall for step in steps)
    order = sorted(range(len(steps)), key=lambda place: -steps[place].wall)
    ratio = steps[order[0]].wall / middle
    by_size = by_nodes(steps)
    return {
        "num_steps": len(steps),
        "median_milliseconds": middle,
        "percentiles_milliseconds": {
            str(share): float(np.percentile([step.wall for step in steps], share))
            for share in (1, 10, 50, 90, 99, 99.9)
        },
        "median_milliseconds_by_nodes": by_size,
        "worst_over_median": ratio,
        "worst_over_median_of_its_tree": max(s.wall / by_size[str(s.num_nodes)] for s in steps),
        "is_even": ratio <= MAX_RATIO,
        "num_above_limit": sum(step.wall > MAX_RATIO * middle for step in steps),
        "worst": [{"step": place, **steps[place]._asdict()} for place in order[:NUM_WORST]],
        "memory": flatness(memory),
    }


def by_nodes(steps: Sequence[Step]) -> dict[str, float]:
    sizes = sorted({step.num_nodes for step in steps})
    return {
        str(size): median(step.wall for step in steps if step.num_nodes == size) for size in sizes
    }


def flatness(memory: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The straight line through the samples behind the first tenth, and what it gains."""
    counted = memory[len(memory) // 10 :]
    growth = None
    if len(counted) >= 2:
        places, sizes = np.array(counted, dtype=float).T
        slope, start = np.polyfit(places - places[0], sizes, 1)
        growth = float(slope * (places[-1] - places[0]) / start)
    return {
        "growth": growth,
        "is_flat": None if growth is None else growth <= MAX_GROWTH,
        "resident_bytes": [{"step": place, "bytes": size} for place, size in memory],
    }


if __name__ == "__main__":
    sys.exit(main())
