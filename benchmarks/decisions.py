"""What a policy's decisions cost on the host, in microseconds and in memory that stays.

    .venv/bin/python benchmarks/decisions.py --out RESULT.json

Every policy of a bank (by default the shipped one of the Hydra heads) is asked as the engine asks
it, over steps of an invented stream: heads that say of each parent's children what a geometric
distribution says, now sure, now not, and drafts accepted as often as they say. Nothing is drafted
and no model runs. Timed apart are `widest` with all that is learnt from the last step, one question
between levels (`goes_on`), and `choose`; `step` is all of these in one step. Reported are medians
over steps that drafted, of them the median of some rounds in which the policies take turns (a
machine may be half as fast in one second as in the next); `plain` is `widest` in steps that did not
draft. Kept memory is what the
interpreter holds more behind some thousand steps than before them, for each step. One core is
enough.
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from kept import note, write_result

from entmtp.heads import locate_heads
from entmtp.scheduler import (
    Selection,
    Signals,
    StepChoice,
    TreeBank,
    TreePolicy,
    policy_from_bank,
    read_bank,
)
from entmtp.target.environment import load_average
from entmtp.trees import Part, Tree

POLICIES = ("static", "ladder", "hysteresis", "throughput", "per-step")
LIMIT = 20.0
"""Microseconds that issue 5 asks for"""
PARTS = ("plain", "widest", "goes_on", "choose", "step")
SHARPNESS = (0.3, 0.6, 0.9)
"""Of what heads say of a best child"""
ROUNDS = 20
WARM_UP = 200
"""Steps that are not counted"""

Clock = Callable[[str, float], None]
"""Takes a part of a step and its seconds."""


def main() -> int:
    arguments = parse()
    bank = read_bank(arguments.bank)
    loads = [load_average()]
    policies = {name: policy_from_bank(name, bank) for name in POLICIES}
    rounds = [
        {name: times_of(policy, arguments.steps // ROUNDS) for name, policy in policies.items()}
        for _ in range(ROUNDS)
    ]
    found = {}
    for name, policy in policies.items():
        found[name] = {
            "microseconds": medians([times[name] for times in rounds]),
            "kept_bytes": kept_bytes(policy, arguments.steps),
        }
        note(f"{name}: {found[name]}")
    loads.append(load_average())
    content = {
        "limit_microseconds": LIMIT,
        "num_steps": arguments.steps,
        "bank": described(bank),
        "policies": found,
        "load_average": loads,
    }
    if arguments.out is not None:
        write_result(arguments.out, content)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bank", type=Path, default=locate_heads("hydra") / "bank.json")
    parser.add_argument("--steps", type=int, default=20000)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def described(bank: TreeBank) -> dict[str, Any]:
    return {
        "offered": [tree.num_nodes for tree in bank.offer],
        "wide_tree": bank.wide_tree.num_nodes,
        "sizes": list(bank.timing.sizes),
    }


def times_of(policy: TreePolicy, num_steps: int) -> dict[str, float | None]:
    """Medians of each part; None of one that no step had."""
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    play(policy.begin(0), WARM_UP, lambda part, spent: None)
    play(policy.begin(1), num_steps, lambda part, spent: seconds[part].append(spent))
    return {
        part: round(1e6 * median(spent), 2) if spent else None for part, spent in seconds.items()
    }


def medians(rounds: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """Of each part over the rounds."""
    some = {part: [times[part] for times in rounds] for part in PARTS}
    known = {part: [time for time in times if time is not None] for part, times in some.items()}
    return {part: round(median(times), 2) if times else None for part, times in known.items()}


def kept_bytes(policy: TreePolicy, num_steps: int) -> float:
    """Of a step, what is not given back."""
    selection = policy.begin(2)
    held = []
    tracemalloc.start()
    for _ in range(2):  # all that is replaced in each step has been, once
        play(selection, num_steps, lambda part, spent: None)
        gc.collect()
        held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    return round((held[1] - held[0]) / num_steps, 3)


def play(selection: Selection, num_steps: int, clock: Clock) -> None:
    """Steps of one sequence."""
    draw = random.Random(0)
    drafts = Drafts()
    signals = Signals(0, 0, 0.5, 1.0, 100)
    for step in range(num_steps):
        sharpness = draw.choice(SHARPNESS)
        part = decide(selection, signals, sharpness, drafts, clock)
        accepted = accepted_of(part, sharpness, draw)
        root = draw.random()
        signals = Signals(
            step + 1, accepted, root, 2 * (1 - root), 100 + step % 300, num_rows=part.num_nodes
        )


def decide(
    selection: Selection, signals: Signals, sharpness: float, drafts: Drafts, clock: Clock
) -> Tree | Part:
    started = perf_counter()
    choice = StepChoice(selection, signals, 64)
    asked = perf_counter()
    if choice.widest.depth == 0:
        clock("plain", asked - started)
        return choice.widest
    log_probs = drafts.log_probs(choice.widest, sharpness)
    begun = perf_counter()
    between = begun
    for depth in range(1, choice.widest.depth):
        goes_on, last = choice.goes_on(depth, log_probs), between
        between = perf_counter()
        clock("goes_on", between - last)
        if not goes_on:
            break
    part = choice.choose(log_probs)
    ended = perf_counter()
    clock("widest", asked - started)
    clock("choose", ended - between)
    clock("step", asked - started + ended - begun)
    return part


class Drafts:
    """What heads say of a tree, made once for each."""

    def __init__(self) -> None:
        self._known: dict[tuple[Tree, float], Sequence[float]] = {}

    def log_probs(self, tree: Tree, sharpness: float) -> Sequence[float]:
        if (tree, sharpness) not in self._known:
            self._known[tree, sharpness] = [
                math.log(sharpness) + path[-1] * math.log(1 - sharpness) if path else 0.0
                for path in tree.paths
            ]
        return self._known[tree, sharpness]


def accepted_of(part: Tree | Part, sharpness: float, draw: random.Random) -> int:
    """As deep as the greedy path goes, and no deeper than fits the heads' word."""
    depth = 0
    while depth < part.depth and draw.random() < sharpness:
        depth += 1
    return depth


if __name__ == "__main__":
    sys.exit(main())
