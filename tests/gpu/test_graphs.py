"""CUDA graphs themselves: the law in float32, one wait a step, kernels against each other.

Skipped by name where there is no CUDA device; `tests/law/test_graphs.py` has what a CPU can test.
"""

from __future__ import annotations

import copy
from functools import lru_cache
from importlib.util import find_spec

import pytest
import torch

from draft_heads import KINDS, overfit_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.scheduler import PlainPolicy, RandomPolicy, StaticPolicy, TreePolicy
from entmtp.target import TargetModel
from entmtp.target.runtimes.graphs import GraphsTarget
from entmtp.target.runtimes.tree_attention import ATTENTIONS
from entmtp.target.selfcheck import self_check
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import tiny, tiny_model
from graphed import batch_of
from reference import ids_of, random_prompts, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: there is no CUDA device"),
]

SHAPES = (ROOT, chain(4), full(3, 3), Tree.from_paths([(2,), (2, 1), (5,), (5, 0), (5, 3)]))
SAMPLINGS = (Sampling(), Sampling(0.7, seed=1), Sampling(1.3, top_k=5, top_p=0.9, seed=2))
REQUESTS = [
    (prompt, GenerationParams(24, SAMPLINGS[index % len(SAMPLINGS)]))
    for index, prompt in enumerate(random_prompts(6, 8, longest=20))
]


@lru_cache
def eager() -> TargetModel:
    return TargetModel.from_transformers(tiny_model().to("cuda"), name="tiny-on-cuda")


@lru_cache
def graphs(attention: str = "sdpa") -> GraphsTarget:
    if attention != "sdpa" and find_spec("triton") is None:
        pytest.skip("triton is not installed")
    return GraphsTarget(eager(), attention)


@lru_cache
def heads(kind: str) -> DraftHeads:
    texts = ids_of(run(Engine(tiny()), REQUESTS))
    moved = copy.deepcopy(overfit_heads(tiny(), kind, tuple(texts))).to("cuda")
    moved.bind(eager())
    return moved


@lru_cache
def plain() -> list[tuple[int, ...]]:
    return ids_of(run(Engine(eager(), max_batch_size=1), REQUESTS))


@pytest.mark.parametrize("size", [1, 6])
@pytest.mark.parametrize("policy", [StaticPolicy(chain(4)), RandomPolicy(SHAPES)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_law(kind: str, policy: TreePolicy, size: int) -> None:
    engine = Engine(graphs(), heads(kind), policy, max_batch_size=size)
    results = run(engine, REQUESTS)
    assert ids_of(results) == plain()
    assert sum(result.stats.num_accepted_tokens for result in results) > 10


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_kernel_keeps_the_law(attention: str) -> None:
    self_check(graphs(attention))
    engine = Engine(graphs(attention), heads("hydra++"), RandomPolicy(SHAPES))
    assert ids_of(run(engine, REQUESTS)) == plain()


@pytest.mark.parametrize("policy", [PlainPolicy(), StaticPolicy(full(3, 3))])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_waits_once(kind: str, policy: TreePolicy) -> None:
    """Nothing synchronises but the event behind the one copy, which is to pinned memory."""
    engine = Engine(graphs(), heads(kind), policy, max_batch_size=3)
    for index, (prompt, _) in enumerate(REQUESTS[:3]):
        engine.add(prompt, GenerationParams(200, SAMPLINGS[index]))
    for _ in range(3):  # prompts, and what three sequences capture
        engine.step()
    captured = batch_of(engine).num_captured
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert engine.num_running == 3
    assert batch_of(engine).num_captured == captured
    assert all(host.is_pinned() for host in batch_of(engine)._host.values())
