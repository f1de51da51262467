"""Tokens a second of plain decoding and of static trees, eager against graphs, interleaved."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple

from entmtp.engine import Engine, FinishEvent, GenerationParams, Result
from entmtp.target.runtimes.tree_attention import ATTENTIONS
from gpu_sections.setup import SHIPPED, Setup, engine_with

_COMPARED = ("plain", "default-16")
"""Trees that every kernel and format is timed with."""


class _Run(NamedTuple):
    dtype: str
    runtime: str
    """`eager`, or `graphs` and the attention kernel"""
    heads: str
    tree: str


def measure(setup: Setup, seconds_left: float) -> dict[str, Any]:
    count, length, rounds = (1, 6, 1) if setup.quick else (3, 128, 2)
    prompts = setup.prompts(count)
    results: dict[_Run, list[Result]] = {}
    for dtype in ("bfloat16",) if setup.quick else ("bfloat16", "float16"):
        engines = {run: _engine(setup, run) for run in _runs(setup, dtype)}
        for engine in engines.values():  # whatever happens once
            _generated(engine, prompts[0], length)
        for _ in range(rounds):
            for prompt in prompts:
                for run, engine in engines.items():
                    results.setdefault(run, []).append(_generated(engine, prompt, length))
    rows = [{**run._asdict(), **_figures(found)} for run, found in results.items()]
    return {"num_prompts": count, "num_tokens": length, "rounds": rounds, "runs": rows}


def _runs(setup: Setup, dtype: str) -> Iterator[_Run]:
    is_first = dtype == "bfloat16"
    for runtime in ("eager", "graphs-sdpa"):
        for kind in SHIPPED if is_first else SHIPPED[1:]:
            for tree in setup.trees(kind) if is_first else _COMPARED:
                yield _Run(dtype, runtime, kind, tree)
    if setup.is_cuda and is_first:
        for kernel in set(ATTENTIONS) - {"sdpa"}:
            for tree in _COMPARED:
                yield _Run(dtype, f"graphs-{kernel}", SHIPPED[1], tree)


def _engine(setup: Setup, run: _Run) -> Engine:
    runtime, _, kernel = run.runtime.partition("-")
    is_eager = runtime == "eager"
    target = setup.target(run.dtype) if is_eager else setup.graphs(run.dtype, kernel)
    return engine_with(
        target, setup.heads(run.heads, run.dtype), [setup.trees(run.heads)[run.tree]]
    )


def _generated(engine: Engine, prompt: Any, length: int) -> Result:
    request_id = engine.add(prompt, GenerationParams(length, ignore_eos=True))
    for event in engine.events(request_id):
        if isinstance(event, FinishEvent):
            return event.result
    raise AssertionError("a request ends with a FinishEvent")


def _figures(results: list[Result]) -> dict[str, float]:
    stats = [result.stats for result in results]
    steps = sum(one.num_drafts for one in stats)
    accepted = sum(one.num_accepted_tokens for one in stats)
    return {
        "tokens_per_second": median((s.num_tokens - 1) / s.decode_seconds for s in stats),
        "step_ms": 1e3 * median(s.decode_seconds / s.num_drafts for s in stats),
        "draft_ms": 1e3 * median(s.step_seconds.draft / s.num_drafts for s in stats),
        "mean_acceptance_length": 1 + accepted / steps,
    }
