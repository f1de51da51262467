"""Ids of trees are those of plain decoding: float32, every kind of heads, eager and graphs."""

from __future__ import annotations

from typing import Any

from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.target import TargetModel
from gpu_sections.setup import Setup, engine_with

KINDS = ("medusa", "hydra", "hydra++")


def check(setup: Setup, seconds_left: float) -> dict[str, Any]:
    count, length = (2, 8) if setup.quick else (8, 48)
    params = [
        GenerationParams(length, Sampling(0.8 * (index % 2), seed=index), ignore_eos=True)
        for index in range(count)
    ]
    prompts = setup.prompts(count)
    eager, graphs = setup.target("float32"), setup.graphs("float32")
    expected = _ids(Engine(eager, max_batch_size=1), prompts, params)
    rows = []
    targets: list[TargetModel] = [eager, graphs]
    for kind in KINDS[-1:] if setup.quick else KINDS:
        for name, tree in setup.trees(kind).items():
            for target in targets:
                for size in (1, count):
                    engine = engine_with(target, setup.heads(kind, "float32"), tree, size)
                    got = _ids(engine, prompts, params)
                    same = sum(one == other for one, other in zip(got, expected, strict=True))
                    rows.append(
                        {
                            "runtime": target.runtime,
                            "heads": kind,
                            "tree": name,
                            "batch": size,
                            "num_identical": same,
                            "num_prompts": count,
                        }
                    )
    passed = all(row["num_identical"] == row["num_prompts"] for row in rows)
    return {"passed": passed, "num_tokens": length, "runs": rows}


def _ids(
    engine: Engine, prompts: list[Any], params: list[GenerationParams]
) -> list[tuple[int, ...]]:
    ids = [engine.add(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
    return [list(engine.events(request_id))[-1].result.token_ids for request_id in ids]
