"""Cases L14, L15 and L17: what is kept between steps, and what is left behind by a call.

L15: after every step, what is kept equals a fresh prefill of the committed text: keys and values
of every layer, the hidden states given to the heads, and the cache and context of Hydra++'s prefix
layer.
"""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, PreTrainedModel

from draft_heads import (
    KINDS,
    ToldHeads,
    heads_by_heart,
    hidden_states,
    overfit_heads,
    random_heads,
)
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams, Result, TokenEvent
from entmtp.heads import DraftHeads
from entmtp.heads.hydra import HydraHeads
from entmtp.scheduler import PlainPolicy, RandomPolicy, StaticPolicy
from entmtp.target import KVCache
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import ARCHITECTURES, tiny, tiny_model
from reference import random_prompts, result_of

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
    if batch._heads_cache is not None:
        assert batch._heads_cache.lengths[row] + batch._unseen.num_tokens == len(ids)
    with torch.inference_mode():
        batch._catch_up()  # heads see what plain steps keep when they draft again
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


def step_by_step(engine: Engine, prompt: list[int], num_tokens: int) -> Result:
    """Run one request and look at the cache after each step: it holds all but the last token."""
    request_id = engine.add(prompt, GenerationParams(num_tokens))
    num_said = 0
    while True:
        engine.step()
        for event in engine.take_events(request_id):
            result = getattr(event, "result", None)
            if result is not None:
                return result
            num_said += len(event.token_ids)
        assert engine.cache_lengths == [len(prompt) + num_said - 1]


PATTERNS = {
    "all rejected": lambda depth, rank, truth: (truth + 1 + rank) % 8,
    "first rejected": lambda depth, rank, truth: truth if rank == 1 else (truth + 1) % 8,
    "last child": lambda depth, rank, truth: truth if rank == 2 else (truth + 1 + rank) % 8,
    "cut at depth 2": lambda depth, rank, truth: (truth + (depth > 1) + rank) % 8,
    "all accepted": lambda depth, rank, truth: (truth + rank) % 8,
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_L14_the_cache_holds_what_was_committed(pattern: str) -> None:
    # A first token, then 300 in whole steps.
    prompt, num_tokens, target = [5, 1, 6], 301, tiny(max_length=512)
    plain = Engine(target).generate(prompt, GenerationParams(num_tokens)).token_ids
    text = [*prompt, *plain, *[0] * 8]
    heads = ToldHeads(
        target, lambda at, path: PATTERNS[pattern](len(path), path[-1], text[at + len(path)])
    )
    result = step_by_step(Engine(target, heads, StaticPolicy(full(3, 3))), prompt, num_tokens)
    assert result.token_ids == plain
    steps_of = {"all rejected": 300, "cut at depth 2": 150}
    assert result.stats.num_drafts == steps_of.get(pattern, 75)


@pytest.mark.parametrize("kind", KINDS)
def test_L14_acceptance_does_not_wear_off(kind: str) -> None:
    text = Engine(tiny()).generate([6], GenerationParams(150)).token_ids
    heads = overfit_heads(tiny(), kind, ((6, *text),), num_steps=150)
    engine = Engine(tiny(), heads, StaticPolicy(chain(4)))
    events = engine.stream([6], GenerationParams(150))
    lengths = [len(event.token_ids) for event in events if isinstance(event, TokenEvent)][1:-1]
    third = len(lengths) // 3
    assert sum(lengths[-third:]) >= 0.9 * sum(lengths[:third])
    assert sum(lengths) > 2 * len(lengths)


def same(one: Result, other: Result) -> bool:
    """The same text in the same steps."""
    stats = [(r.stats.num_drafts, r.stats.num_accepted_tokens_per_pos) for r in (one, other)]
    return one.token_ids == other.token_ids and stats[0] == stats[1]


@pytest.mark.parametrize("kind", KINDS)
def test_L17_nothing_is_left_over_from_the_last_call(kind: str) -> None:
    long, short = random_prompts(1, 8, longest=1)[0] * 60, [4, 2]
    params = GenerationParams(30)

    def fresh() -> Engine:
        return Engine(tiny(), heads_by_heart(tiny(), kind), RandomPolicy([chain(4), *SHAPES]))

    expected = {len(prompt): fresh().generate(prompt, params) for prompt in (long, short)}
    engine = fresh()
    for prompt in (long, short, long, short, short):
        assert same(engine.generate(prompt, params), expected[len(prompt)])
    # After one that was given up in the middle.
    events = engine.stream(long, params)
    next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    assert engine.num_cache_bytes == 0
    assert same(engine.generate(short, params), expected[len(short)])
    # After one with other trees, and in the midst of one.
    for policy in (StaticPolicy(full(8, 2)), StaticPolicy(chain(1)), PlainPolicy()):
        other = engine.add(long, params, policy)
        assert result_of(engine, other).token_ids == expected[len(long)].token_ids
        assert same(engine.generate(short, params), expected[len(short)])
        engine.add(long, params, policy)
        engine.step()
        assert same(engine.generate(short, params), expected[len(short)])


@pytest.mark.parametrize("kind", KINDS)
def test_L17_nothing_is_left_over_from_an_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = GenerationParams(30)
    heads = random_heads(tiny(), kind)
    engine = Engine(tiny(), heads, StaticPolicy(SHAPES[-1]))
    expected = engine.generate([4, 2], params)
    for place in ("fill", "observe"):
        with monkeypatch.context() as patch:

            def fail(*_: object) -> None:
                raise RuntimeError("out of memory")

            patch.setattr(heads, place, fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                engine.generate_many([[1] * 50, [2] * 9], params)
        assert engine.num_running == engine.num_waiting == engine.num_cache_bytes == 0
        assert same(engine.generate([4, 2], params), expected)
