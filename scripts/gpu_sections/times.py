"""Tokens a second of plain decoding and of static trees, eager against graphs, interleaved."""

from __future__ import annotations

from statistics import median
from typing import Any

from entmtp.engine import Engine, FinishEvent, GenerationParams, Result
from entmtp.target import TargetModel
from entmtp.target.runtimes.tree_attention import ATTENTIONS
from gpu_sections.setup import Setup, engine_with


def measure(setup: Setup, seconds_left: float) -> dict[str, Any]:
    count, length, rounds = (1, 6, 1) if setup.quick else (4, 128, 3)
    kernels = ATTENTIONS if setup.is_cuda else ("sdpa",)
    prompts = setup.prompts(count)
    rows = []
    for dtype in ("bfloat16",) if setup.quick else ("bfloat16", "float16"):
        targets: dict[str, TargetModel] = {"eager": setup.target(dtype)}
        for kernel in kernels:
            targets[f"graphs-{kernel}"] = setup.graphs(dtype, kernel)
        engines = {
            (runtime, kind, tree_name): engine_with(target, setup.heads(kind, dtype), tree)
            for runtime, target in targets.items()
            for kind in ("medusa", "hydra")
            for tree_name, tree in setup.trees(kind).items()
        }
        results: dict[tuple[str, str, str], list[Result]] = {key: [] for key in engines}
        for engine in engines.values():  # whatever happens once
            _run(engine, prompts[0], length)
        for _ in range(rounds):
            for prompt in prompts:
                for key, engine in engines.items():
                    results[key].append(_run(engine, prompt, length))
        rows += [{"dtype": dtype, **_row(key, found)} for key, found in results.items()]
    return {"num_prompts": count, "num_tokens": length, "rounds": rounds, "runs": rows}


def _run(engine: Engine, prompt: Any, length: int) -> Result:
    request_id = engine.add(prompt, GenerationParams(length, ignore_eos=True))
    for event in engine.events(request_id):
        if isinstance(event, FinishEvent):
            return event.result
    raise AssertionError("a request ends with a FinishEvent")


def _row(key: tuple[str, str, str], results: list[Result]) -> dict[str, Any]:
    stats = [result.stats for result in results]
    steps = sum(one.num_drafts for one in stats)
    accepted = sum(one.num_accepted_tokens for one in stats)
    return {
        "runtime": key[0],
        "heads": key[1],
        "tree": key[2],
        "tokens_per_second": median((s.num_tokens - 1) / s.decode_seconds for s in stats),
        "step_ms": 1e3 * median(s.decode_seconds / s.num_drafts for s in stats),
        "draft_ms": 1e3 * median(s.step_seconds.draft / s.num_drafts for s in stats),
        "mean_acceptance_length": 1 + accepted / steps,
    }
