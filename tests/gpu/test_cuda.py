"""On a CUDA device: the law in float32, and one copy to the host a step.

Skipped by name where there is none. Models are tiny; TF32 is off, as PyTorch has it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache

import pytest
import torch

from confident import ConfidentPolicy
from draft_heads import KINDS, overfit_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.scheduler import PlainPolicy, RandomPolicy, Selection, StaticPolicy, TreePolicy
from entmtp.target import TargetModel
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import tiny, tiny_model
from reference import ids_of, random_prompts, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: there is no CUDA device"),
]

SHAPES = (ROOT, chain(4), full(3, 3), Tree.from_paths([(2,), (2, 1), (5,), (5, 0), (5, 3)]))
POLICIES: dict[str, Callable[[], TreePolicy]] = {
    "chain-4": lambda: StaticPolicy(chain(4)),
    "full": lambda: StaticPolicy(full(3, 3)),
    "random": lambda: RandomPolicy(SHAPES),
    "confident": lambda: ConfidentPolicy(SHAPES),
}
SAMPLINGS = (Sampling(), Sampling(0.7, seed=1), Sampling(1.3, top_k=5, top_p=0.9, seed=2))
PROMPTS = random_prompts(6, 8, longest=20)
REQUESTS = [
    (prompt, GenerationParams(24, SAMPLINGS[index % len(SAMPLINGS)]))
    for index, prompt in enumerate(PROMPTS)
]


@lru_cache
def target() -> TargetModel:
    return TargetModel.from_transformers(tiny_model().to("cuda"), name="tiny-on-cuda")


@lru_cache
def heads(kind: str) -> DraftHeads:
    """Trained on the CPU's model, which says nearly always the same."""
    texts = ids_of(run(Engine(tiny()), REQUESTS))
    moved = copy.deepcopy(overfit_heads(tiny(), kind, tuple(texts))).to("cuda")
    moved.bind(target())
    return moved


@lru_cache
def plain() -> list[tuple[int, ...]]:
    return ids_of(run(Engine(target(), max_batch_size=1), REQUESTS))


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law(kind: str, policy: str, size: int) -> None:
    engine = Engine(target(), heads(kind), POLICIES[policy](), max_batch_size=size)
    results = run(engine, REQUESTS)
    assert ids_of(results) == plain()
    assert sum(result.stats.num_accepted_tokens for result in results) > 20
    assert engine.num_cache_bytes == 0


class ReadsRoot(StaticPolicy):
    def begin(self, seed: int) -> Selection:
        selection = super().begin(seed)
        selection.reads_root = True
        return selection


@pytest.mark.parametrize("policy", [PlainPolicy(), StaticPolicy(full(3, 3)), ReadsRoot(full(3, 3))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_makes_one_copy_to_the_host(kind: str, policy: TreePolicy) -> None:
    engine = Engine(target(), heads(kind), policy)
    for prompt in PROMPTS[:3]:
        engine.add(prompt, GenerationParams(60))
    engine.step()  # prefill, and whatever happens once
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        engine.step()
        torch.cuda.synchronize()
    assert engine.num_running == 3
    copies = [event.name for event in profile.events() if "DtoH" in event.name]
    assert len(copies) == 1, copies
