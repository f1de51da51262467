"""The one runner of the matrix: is a model exact under trees, or refused, and why?

Exact means, in float32: plain decoding gives the ids of `transformers.generate` (greedy) and of
whole forwards without a cache (sampled), past every window; and a tree that always holds the right
path, two sequences at a time, gives the ids of plain decoding, greedy and sampled.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from transformers import PreTrainedModel

from draft_heads import random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import ModelRefused
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.target.gguf_file import quiet
from entmtp.target.selfcheck import self_check
from entmtp.trees import full
from model_roster import VOCAB_SIZE, Row, build
from reference import ids_of, run, slow_ids

NUM_TOKENS = 16
_PROMPTS = tuple(prompt * 9 for prompt in ([1, 6], [5, 0, 3]))
"""Of unequal length, and longer than the window"""
_SAMPLINGS = (Sampling(), Sampling(temperature=0.7, seed=5))


class Verdict(NamedTuple):
    """What became of a model."""

    is_exact: bool
    why_not: str
    """The sentence that refuses it; empty for an exact one"""
    max_length: int | None = None


def judge(row: Row) -> Verdict:
    """Run a row's model through everything.

    Raises:
        AssertionError: it was let in, and is not exact.
    """
    with quiet():
        bare = build(row)
    try:
        target = TargetModel.from_transformers(copy.deepcopy(bare), name=row.name)
        self_check(target)
    except ModelRefused as error:
        return Verdict(False, str(error))
    _demand_exactness(bare, target)
    return Verdict(True, "", target.max_length)


def _demand_exactness(bare: PreTrainedModel, target: TargetModel) -> None:
    requests = [(p, GenerationParams(NUM_TOKENS, s)) for s in _SAMPLINGS for p in _PROMPTS]
    plain = ids_of(run(Engine(target, max_batch_size=1), requests))
    for (prompt, params), ids in zip(requests, plain, strict=True):
        if params.sampling.is_greedy:
            assert ids == generated(bare, prompt, len(ids)), "not transformers.generate"
        else:
            assert ids == slow_ids(bare, prompt, params.sampling, len(ids)), "not whole forwards"
    everything = StaticPolicy(full(VOCAB_SIZE, 2))
    results = run(Engine(target, random_heads(target, "hydra", 2), everything), requests)
    assert ids_of(results) == plain, "the tree gives other ids than plain decoding"
    for result in results:
        assert result.stats.num_accepted_tokens > result.stats.num_drafts, "the tree held nothing"


@torch.no_grad()
def generated(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> tuple[int, ...]:
    """What `transformers` itself generates, greedily."""
    ids = torch.tensor([prompt])
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return tuple(answer[0, len(prompt) :].tolist())
