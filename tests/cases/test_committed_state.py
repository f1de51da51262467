"""Case L15: after every step, what is kept equals a fresh prefill of the committed text.

Keys and values of every layer, the hidden states given to the heads, and the cache and context
of Hydra++'s prefix layer.
"""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from draft_heads import KINDS, ToldHeads, hidden_states, random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.heads.hydra import HydraHeads
from entmtp.scheduler import RandomPolicy, StaticPolicy
from entmtp.target import KVCache
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import ARCHITECTURES, tiny, tiny_model
from reference import random_prompts

TOLERANCE = 1e-4
SHAPES = (ROOT, chain(2), full(8, 2), Tree.from_paths([(5,), (5, 2), (7,), (7, 0), (7, 1)]))


def assert_close(kept: torch.Tensor, expected: torch.Tensor) -> None:
    assert kept.shape == expected.shape
    assert (kept - expected).abs().max().item() <= TOLERANCE


@torch.no_grad()
def assert_is_fresh(cache: KVCache, row: int, model: PreTrainedModel, ids: list[int]) -> None:
    """The committed part of a row, against `transformers`' own cache of the same ids."""
    fresh = DynamicCache()
    model(input_ids=torch.tensor([ids]), cache=fresh, use_cache=True)
    for index, layer in enumerate(fresh.layers):
        keys, values = cache.layer(index)
        assert_close(keys[row, :, : len(ids)], layer.keys[0])
        assert_close(values[row, :, : len(ids)], layer.values[0])


@torch.no_grad()
def assert_heads_are_fresh(engine: Engine, row: int, ids: list[int], heads: DraftHeads) -> None:
    """The context to draft from, and the prefix layer's cache."""
    batch = engine._loop.batch
    hidden = hidden_states(engine.target, torch.tensor([ids]))
    assert_close(batch._context[row], heads.context(hidden)[0, -1])
    if isinstance(heads, HydraHeads) and heads.prefix is not None:
        fresh = heads.new_cache(1, len(ids))
        heads.observe(hidden, fresh, [len(ids)])
        assert fresh is not None
        assert batch._heads_cache is not None
        assert batch._heads_cache.lengths[row] == len(ids)
        for kept, expected in zip(batch._heads_cache.layer(0), fresh.layer(0), strict=True):
            assert_close(kept[row, :, : len(ids)], expected[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_L15_every_step_leaves_a_fresh_state(arch: str, kind: str) -> None:
    target, model = tiny(arch), tiny_model(arch)
    heads = random_heads(target, kind)
    engine = Engine(target, heads, RandomPolicy(SHAPES), max_batch_size=3)
    prompts = random_prompts(4, 8, longest=20, seed=8)
    text = {}
    for seed, prompt in enumerate(prompts):
        # Different lengths, so that rows are left, moved and taken again.
        params = GenerationParams(10 + 4 * seed, Sampling(0.8 * (seed % 2), seed=seed))
        text[engine.add(prompt, params)] = list(prompt)
    num_compared = 0
    while engine.num_running or engine.num_waiting:
        engine.step()
        for request_id, ids in text.items():
            for event in engine.take_events(request_id):
                ids.extend(getattr(event, "token_ids", ()))
        running = [sequence.request_id for sequence in engine._loop.running]
        assert engine.cache_lengths == [len(text[request_id]) - 1 for request_id in running]
        for row, request_id in enumerate(running):
            assert engine._loop.batch._cache is not None
            assert_is_fresh(engine._loop.batch._cache, row, model, text[request_id][:-1])
            assert_heads_are_fresh(engine, row, text[request_id][:-1], heads)
            num_compared += 1
    assert num_compared > 15


def test_L15_accepted_nodes_that_never_lie_together() -> None:
    """Child 5, then child 2 of a full tree: rows 6 and 8 + 5·8 + 3 of the step."""
    target, prompt = tiny(), [3, 0, 7]
    plain = Engine(target).generate(prompt, GenerationParams(52)).token_ids
    text = [*prompt, *plain, *[0] * 4]

    def guess(position: int, path: tuple[int, ...]) -> int:
        truth, right = text[position + len(path)], (5, 2)[len(path) - 1]
        return (truth + path[-1] - right) % 8

    heads = ToldHeads(target, guess)
    engine = Engine(target, heads, StaticPolicy(full(8, 2)))
    result = engine.generate(prompt, GenerationParams(52))
    assert result.token_ids == plain
    assert result.stats.num_accepted_tokens == 2 * result.stats.num_drafts
    # What the heads were shown, one behind the other, is the plain text's hidden states.
    shown = torch.cat(heads.observed)
    ids = torch.tensor([text[: len(shown)]])
    assert_close(shown, hidden_states(target, ids)[0])
