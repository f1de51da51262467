"""Ids of trees are those of plain decoding: float32, every kind of heads, eager and graphs."""

from __future__ import annotations

from typing import Any

from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams, Result
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from gpu_sections.setup import Prompt, Setup, engine_with

_KINDS = ("medusa", "hydra", "hydra++")


def check(setup: Setup, seconds_left: float) -> dict[str, Any]:
    count, length = (2, 8) if setup.quick else (4, 64)
    params = [
        GenerationParams(length, Sampling(0.8 * (index % 2), seed=index), ignore_eos=True)
        for index in range(count)
    ]
    requests = list(zip(setup.prompts(count), params, strict=True))
    eager, graphs = setup.target("float32"), setup.graphs("float32")
    plain = StaticPolicy(setup.trees("hydra")["plain"])
    expected = [result.token_ids for result in _run(Engine(eager), requests, plain)]
    rows = []
    for kind in _KINDS[1:2] if setup.quick else _KINDS:
        trees, heads = setup.trees(kind), setup.heads(kind, "float32")
        targets: list[TargetModel] = [eager, graphs]
        for target in targets:
            for size in {1, count}:
                engine = engine_with(target, heads, trees.values(), size)
                for name, tree in trees.items():
                    results = _run(engine, requests, StaticPolicy(tree))
                    rows.append(
                        {
                            "runtime": target.runtime,
                            "heads": kind,
                            "tree": name,
                            "batch": size,
                            **_judged(results, expected),
                        }
                    )
    passed = all(row["num_identical"] == count for row in rows)
    return {"passed": passed, "num_prompts": count, "num_tokens": length, "runs": rows}


def _run(
    engine: Engine, requests: list[tuple[Prompt, GenerationParams]], policy: StaticPolicy
) -> list[Result]:
    ids = [engine.add(prompt, params, policy) for prompt, params in requests]
    last = [list(engine.events(request_id))[-1] for request_id in ids]
    return [event.result for event in last if isinstance(event, FinishEvent)]


def _judged(results: list[Result], expected: list[tuple[int, ...]]) -> dict[str, int]:
    pairs = zip(results, expected, strict=True)
    return {
        "num_identical": sum(result.token_ids == ids for result, ids in pairs),
        "num_accepted": sum(result.stats.num_accepted_tokens for result in results),
    }
