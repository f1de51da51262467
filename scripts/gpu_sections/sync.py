"""A step waits for the device once: nothing else in it makes the host wait."""

from __future__ import annotations

from typing import Any

import torch

from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.trees import Tree
from gpu_sections.setup import Setup, engine_with

_STEPS = 10


def check(setup: Setup, seconds_left: float) -> dict[str, Any]:
    if not setup.is_cuda:
        return {"left_out": "it needs a CUDA device"}
    rows = []
    for kind in ("medusa", "hydra", "hydra++"):
        for name in ("plain", "default-16"):
            tree = setup.trees(kind)[name]
            rows.append({"heads": kind, "tree": name, **_steps(setup, kind, tree)})
    return {"passed": all(row["waits"] == "once" for row in rows), "runs": rows}


def _steps(setup: Setup, kind: str, tree: Tree) -> dict[str, Any]:
    engine = engine_with(setup.graphs("bfloat16"), setup.heads(kind, "bfloat16"), [tree], size=2)
    for index, prompt in enumerate(setup.prompts(2)):
        sampling = Sampling(0.8 * index, seed=index)
        engine.add(prompt, GenerationParams(400, sampling, ignore_eos=True))
    for _ in range(3):  # prompts, and what two sequences capture
        engine.step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(_STEPS):
            engine.step()
    except RuntimeError as error:
        return {"waits": f"more often: {' '.join(str(error).split())[:300]}"}
    finally:
        torch.cuda.set_sync_debug_mode("default")
    copies = _copies_to_host(engine)
    return {"waits": "once" if len(copies) == 1 else f"copies to the host: {copies}"}


def _copies_to_host(engine: Engine) -> list[str]:
    """Of one step, by the profiler."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        engine.step()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if "DtoH" in event.name]
