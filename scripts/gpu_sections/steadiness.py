"""Some thousand steps, another tree each time: none slow, nothing captured, memory flat."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import torch

from entmtp.engine import Engine, GenerationParams
from entmtp.scheduler import Selection, Signals, TreePolicy
from entmtp.trees import Tree
from gpu_sections.setup import Clock, Setup

_MOST = 5.0
"""A step may take this many medians."""
_GROWTH = 1.02
"""Memory at the end may be this many times what it was a tenth of the way in."""


def check(setup: Setup, seconds_left: float) -> dict[str, Any]:
    wanted = 40 if setup.quick else 4000
    target, heads = setup.graphs("bfloat16"), setup.heads("hydra", "bfloat16")
    engine = Engine(target, heads, _InTurn(tuple(setup.trees("hydra").values())), max_batch_size=1)
    batch: Any = engine._loop.batch
    clock, steps, memory = Clock(setup.device), [], []
    captured = batch.num_captured
    [prompt] = setup.prompts(1)
    while len(steps) < wanted:
        engine.add(prompt, GenerationParams(min(1500, 4 * wanted), ignore_eos=True))
        engine.step()  # the prompt, too
        clock.lap()
        while engine.num_running and len(steps) < wanted:
            engine.step()
            steps.append(clock.lap())
            memory.append(_bytes(setup.device))
        for request_id in list(engine._loop._inbox):
            engine.forget(request_id)
    settled = memory[len(memory) // 10]
    slowest = max(steps) / median(steps)
    grown = memory[-1] / settled
    is_flat = slowest <= _MOST and grown <= _GROWTH
    return {
        # On a CPU others use the processor, too.
        **({"passed": is_flat and batch.num_captured == captured} if setup.is_cuda else {}),
        "num_steps": len(steps),
        "median_ms": 1e3 * median(steps),
        "slowest_in_medians": slowest,
        "memory_bytes": {"settled": settled, "end": memory[-1]},
        "num_captured": {"before": captured, "after": batch.num_captured},
    }


def _bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return 4096 * int(pages)


class _InTurn(TreePolicy):
    """Each tree after the other."""

    name = "in-turn"

    def __init__(self, trees: tuple[Tree, ...]) -> None:
        self.trees = trees

    def begin(self, seed: int) -> Selection:
        return _Next(self.trees)


class _Next(Selection):
    def __init__(self, trees: tuple[Tree, ...]) -> None:
        self._trees = trees

    def widest(self, signals: Signals) -> Tree:
        return self._trees[signals.num_steps % len(self._trees)]
