"""The one runner of the matrix: is a model exact under trees, or refused, and why?

Exact means, in float32: plain decoding gives the ids of `transformers.generate` (greedy) and of
whole forwards without a cache (sampled), past every window; and a tree that always holds the right
path, two sequences at a time, gives the ids of plain decoding, greedy and sampled.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
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

NUM_TOKENS = 12
PROMPTS = tuple(prompt * 9 for prompt in ([1, 6], [5, 0, 3]))
"""Of unequal length, and longer than the window"""
SAMPLINGS = (Sampling(), Sampling(temperature=0.7, seed=5))


class Admission(NamedTuple):
    """What loading a model of the matrix comes to."""

    bare: PreTrainedModel
    """As `transformers` has it"""
    target: TargetModel | None
    refusal: str
    """The sentence that refuses it; empty where there is a target"""


def admit(row: Row) -> Admission:
    """Wrap and check a row's model."""
    with quiet():
        bare = build(row)
    try:
        target = TargetModel.from_transformers(copy.deepcopy(bare), name=row.name)
        self_check(target)
    except ModelRefused as error:
        return Admission(bare, None, str(error))
    return Admission(bare, target, "")


def demand_exactness(bare: PreTrainedModel, target: TargetModel) -> None:
    """Run a model that was let in through everything.

    Raises:
        AssertionError: it is not exact; the message says against what.
    """
    requests = [(p, GenerationParams(NUM_TOKENS, s)) for s in SAMPLINGS for p in PROMPTS]
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
def generated(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """What `transformers` itself generates, greedily."""
    ids = torch.tensor([list(prompt)])
    answer = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return tuple(answer[0, len(prompt) :].tolist())
