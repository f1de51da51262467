"""Trees with processors and ends against `transformers.generate` as a whole, greedily."""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import pytest
import torch

from draft_heads import random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.scheduler import RandomPolicy
from entmtp.trees import ROOT, chain, full
from fixtures import tiny, tiny_model
from reference import ids_of, run

NUM_TOKENS = 20
model = lru_cache(tiny_model)
Case = tuple[list[int], GenerationParams, dict[str, Any]]


def case(draw: random.Random) -> Case:
    """A prompt, what is asked of our engine, and the same in the words of `transformers`."""
    prompt = [draw.randrange(8) for _ in range(draw.choice([1, 3, 9]))]
    penalty = draw.choice([0.7, 1.0, 1.4])
    bias = tuple((one, draw.uniform(-3, 3)) for one in draw.sample(range(8), draw.randrange(3)))
    lengths = [draw.choice([1, 2, 2, 3]) for _ in range(draw.randrange(4))]
    words = tuple(tuple(draw.randrange(6) for _ in range(length)) for length in lengths)
    ends, least = tuple(draw.sample(range(8), draw.randrange(1, 3))), draw.choice([0, 0, 6])
    # A word that is an end alone is not banned by `transformers`.
    words = tuple(word for word in words if word not in {(end,) for end in ends})
    sampling = Sampling(repetition_penalty=penalty, logit_bias=bias, banned_ids=words)
    theirs: dict[str, Any] = {
        "max_new_tokens": NUM_TOKENS,
        "min_new_tokens": least or None,
        "eos_token_id": list(ends),
        "repetition_penalty": penalty,
        "sequence_bias": [[[one], value] for one, value in bias] or None,
        "bad_words_ids": [list(word) for word in words] or None,
    }
    params = GenerationParams(NUM_TOKENS, sampling, stop_token_ids=ends, min_tokens=least)
    return prompt, params, theirs


@torch.no_grad()
def generated(prompt: list[int], theirs: dict[str, Any]) -> tuple[int, ...]:
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    answer = model().generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **theirs)
    return tuple(answer[0, len(prompt) :].tolist())


@pytest.mark.parametrize("kind", ["medusa", "hydra++"])
def test_trees_give_what_generate_gives(kind: str) -> None:
    cases = [case(random.Random(seed)) for seed in range(24)]
    policy = RandomPolicy([ROOT, chain(3), full(8, 2)])
    engine = Engine(tiny(), random_heads(tiny(), kind), policy, max_batch_size=5)
    answers = ids_of(run(engine, [(prompt, params) for prompt, params, _ in cases]))
    expected = [generated(prompt, theirs) for prompt, _, theirs in cases]
    assert answers == expected
    assert len({len(answer) for answer in answers}) > 4
