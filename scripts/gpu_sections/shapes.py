"""t(nodes, depth) for shapes of Llamas: random weights and heads, so times and nothing else."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch

from entmtp.engine import Engine, GenerationParams
from entmtp.scheduler import StaticPolicy
from entmtp.target.runtimes.graphs import GraphsTarget
from entmtp.trees import ROOT, Tree
from gpu_sections.setup import (
    TINY,
    Clock,
    Setup,
    engine_with,
    graphs_of,
    note,
    random_heads,
    random_target,
)

_LLAMAS: dict[str, dict[str, int]] = {
    "1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "vocab_size": 128256,
        "max_position_embeddings": 2048,
    },
    "7b": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "max_position_embeddings": 2048,
    },
}
_NODES = (1, 8, 16, 24, 32, 48, 64)
_DEPTHS = (1, 2, 3, 4)


def measure(setup: Setup, seconds_left: float) -> dict[str, Any]:
    started = perf_counter()
    shapes = {"tiny": TINY} if setup.quick else _LLAMAS
    found: dict[str, Any] = {"weights": "random: timing only", "dtype": "bfloat16"}
    for name, sizes in shapes.items():
        if perf_counter() - started > seconds_left / 2:
            found[name] = {"left_out": "no time was left"}
            continue
        note(f"shapes: {name}")
        target = graphs_of(random_target(sizes, torch.bfloat16, setup.device))
        found[name] = {kind: _table(setup, target, kind) for kind in ("medusa", "hydra")}
        del target
        if setup.is_cuda:
            torch.cuda.empty_cache()
    return found


def _table(setup: Setup, target: GraphsTarget, kind: str) -> list[dict[str, Any]]:
    """Milliseconds of a step for each number of nodes and depth."""
    nodes, depths = ((1, 8), (2,)) if setup.quick else (_NODES, _DEPTHS)
    cells = [(1, 0)] + [(count, depth) for count in nodes if count > 1 for depth in depths]
    trees = {cell: _tree(*cell) for cell in cells}
    engine = engine_with(target, random_heads(target, kind), trees.values())
    return [
        {"nodes": count, "depth": depth, "step_ms": 1e3 * _step(setup, engine, tree)}
        for (count, depth), tree in trees.items()
    ]


def _step(setup: Setup, engine: Engine, tree: Tree) -> float:
    """Seconds of a step behind some hundred tokens."""
    clock, laps = Clock(setup.device), []
    prompt = [index % 40 for index in range(20 if setup.quick else 500)]
    request_id = engine.add(prompt, GenerationParams(600, ignore_eos=True), StaticPolicy(tree))
    for _ in range(2):
        engine.step()
    for _ in range(3 if setup.quick else 30):
        clock.lap()
        engine.step()
        laps.append(clock.lap())
    engine.forget(request_id)
    return median(laps)


def _tree(count: int, depth: int) -> Tree:
    """A chain, and every other node beside its first."""
    if depth == 0:
        return ROOT
    chain = [(0,) * length for length in range(1, depth + 1)]
    return Tree.from_paths([*chain, *((rank,) for rank in range(1, count - depth))])
