"""The law on the embedded model: real vocabulary, real prompts, float32."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads, HeadsConfig, build_heads, load_heads, prefix_shape
from entmtp.scheduler import RandomPolicy, StaticPolicy, TreePolicy
from entmtp.target import TargetModel
from entmtp.target.attention import ATTENTION_NAME
from entmtp.trees import ROOT, Tree, chain, full
from reference import ids_of, run

pytestmark = [pytest.mark.real_model, pytest.mark.slow]

PROMPTS = (
    "Write a Python function that reverses a string.",
    "A train travels 60 miles in 1.5 hours. How fast is it?",
    "What is a good name for a small black cat?",
)
NUM_TOKENS = 24
GREEDY = Sampling()
WARM = Sampling(
    0.8,
    top_k=40,
    top_p=0.95,
    seed=11,
    min_p=0.02,
    repetition_penalty=1.1,
    frequency_penalty=0.3,
)
SPARSE = Tree.from_paths([(1,), (0,), (3,), (1, 2), (0, 0), (0, 0, 1), (0, 0, 1, 0), (1, 2, 0)])


@pytest.fixture(scope="module")
def plain(smollm2: TargetModel) -> dict[Sampling, list[tuple[int, ...]]]:
    engine = Engine(smollm2)
    return {
        sampling: ids_of(engine.generate_many(PROMPTS, GenerationParams(NUM_TOKENS, sampling)))
        for sampling in (GREEDY, WARM)
    }


def drafted(
    target: TargetModel, heads: DraftHeads, policy: TreePolicy, samplings: Sequence[Sampling]
) -> dict[Sampling, list[tuple[int, ...]]]:
    """All prompts in all ways of sampling, in one batch."""
    engine = Engine(target, heads, policy)
    params = [GenerationParams(NUM_TOKENS, sampling) for sampling in samplings]
    requests = [(engine.encode(prompt), each) for each in params for prompt in PROMPTS]
    ids = ids_of(run(engine, requests))
    return {
        sampling: ids[place * len(PROMPTS) : (place + 1) * len(PROMPTS)]
        for place, sampling in enumerate(samplings)
    }


def lazy_heads(target: TargetModel, kind: str) -> DraftHeads:
    """Random heads over a small draft vocabulary, which share the target's rows."""
    config = HeadsConfig(
        kind=kind,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_draft_heads=4,
        num_layers=1,
        draft_vocab_size=2000,
        output="target",
        prefix=prefix_shape(target) if kind == "hydra++" else None,
    )
    torch.manual_seed(0)
    heads = build_heads(config)
    assert heads.draft_ids is not None
    heads.draft_ids.copy_(torch.randperm(target.vocab_size)[:2000])
    heads.bind(target)
    return heads.requires_grad_(False).eval()


def test_plain_equals_transformers(
    smollm2: TargetModel, plain: dict[Sampling, list[tuple[int, ...]]]
) -> None:
    model, prompt = smollm2.transformers_model, Engine(smollm2).encode(PROMPTS[0])
    ids = torch.tensor([prompt])
    model.set_attn_implementation("sdpa")
    try:
        whole = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NUM_TOKENS
        )
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    assert tuple(whole[0, ids.shape[1] :].tolist()) == plain[GREEDY][0]


@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++"])
def test_random_heads(
    smollm2: TargetModel, plain: dict[Sampling, list[tuple[int, ...]]], kind: str
) -> None:
    policy = RandomPolicy([ROOT, chain(4), SPARSE, full(3, 2)])
    assert drafted(smollm2, lazy_heads(smollm2, kind), policy, (GREEDY, WARM)) == plain


@pytest.mark.parametrize("name", ["medusa", "hydra"])
def test_packaged_heads(
    smollm2: TargetModel, plain: dict[Sampling, list[tuple[int, ...]]], name: str
) -> None:
    heads = load_heads(name, smollm2)
    assert drafted(smollm2, heads, StaticPolicy(SPARSE), (GREEDY, WARM)) == plain
    results = Engine(smollm2, heads, StaticPolicy(full(4, 2))).generate_many(
        PROMPTS, GenerationParams(NUM_TOKENS)
    )
    assert ids_of(results) == plain[GREEDY]
    num_steps = sum(result.stats.num_drafts for result in results)
    assert num_steps < 0.8 * sum(len(result.token_ids) for result in results)
