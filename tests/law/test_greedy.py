"""Greedy decoding, plain and drafted, equals what `transformers` itself generates."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from draft_heads import random_heads
from entmtp.engine import Engine, GenerationParams
from entmtp.scheduler import StaticPolicy
from entmtp.trees import full
from fixtures import ARCHITECTURES, tiny, tiny_model
from reference import ids_of, random_prompts, run

NUM_TOKENS = 40
PROMPTS = random_prompts(6, 8, longest=30, seed=5)
PARAMS = GenerationParams(NUM_TOKENS)


@lru_cache
def generated(arch: str) -> list[tuple[int, ...]]:
    model = tiny_model(arch)
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
        )
        answers.append(tuple(whole[0, len(prompt) :].tolist()))
    return answers


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_plain_equals_transformers(arch: str) -> None:
    engine = Engine(tiny(arch), max_batch_size=1)
    assert ids_of(run(engine, [(prompt, PARAMS) for prompt in PROMPTS])) == generated(arch)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_drafted_equals_transformers(arch: str) -> None:
    engine = Engine(tiny(arch), random_heads(tiny(arch), "medusa"), StaticPolicy(full(8, 2)))
    assert ids_of(run(engine, [(prompt, PARAMS) for prompt in PROMPTS])) == generated(arch)
