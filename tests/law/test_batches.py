"""Sequences that step together, come and go, are each what they would be alone."""

from __future__ import annotations

from functools import lru_cache

import pytest

from confident import ConfidentPolicy
from draft_heads import KINDS, overfit_heads, random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams, TokenEvent
from entmtp.errors import BadInput, TreeError
from entmtp.heads import DraftHeads
from entmtp.scheduler import PlainPolicy, RandomPolicy, Selection, StaticPolicy, TreePolicy
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import tiny
from reference import Request, ids_of, random_prompts, result_of, run

SHAPES = (ROOT, chain(3), full(3, 2), Tree.from_paths([(2,), (2, 1), (5,)]))


@lru_cache
def requests() -> tuple[Request, ...]:
    """Of every length and every kind, some over at once."""
    prompts = random_prompts(12, 8, longest=30, seed=3)
    params = [
        GenerationParams(
            max_tokens=1 + (39 + 7 * index) % 40,
            sampling=Sampling(0.9 * (index % 3), top_k=index % 4, seed=index),
            stop_token_ids=(index % 8,) if index % 5 == 0 else (),
        )
        for index in range(len(prompts))
    ]
    return tuple(zip(prompts, params, strict=True))


@lru_cache
def alone() -> list[tuple[int, ...]]:
    return ids_of(run(Engine(tiny(), max_batch_size=1), requests()))


def heads(kind: str) -> DraftHeads:
    texts = run(Engine(tiny()), [([token], GenerationParams(24)) for token in range(8)])
    return overfit_heads(tiny(), kind, tuple(ids_of(texts)))


@pytest.mark.parametrize("size", [1, 4, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", [RandomPolicy(SHAPES), ConfidentPolicy(SHAPES)])
def test_any_company_any_batch_size(policy: TreePolicy, kind: str, size: int) -> None:
    engine = Engine(tiny(), heads(kind), policy, max_batch_size=size)
    assert ids_of(run(engine, requests())) == alone()
    assert engine.num_running == engine.num_waiting == engine.num_cache_bytes == 0


@pytest.mark.parametrize("size", [1, 4, 8])
def test_generate_many(size: int) -> None:
    prompts = [prompt for prompt, _ in requests()]
    params = GenerationParams(16, Sampling(0.8, seed=4))
    lone = [Engine(tiny()).generate(prompt, params).token_ids for prompt in prompts]
    engine = Engine(tiny(), heads("hydra"), StaticPolicy(chain(3)), max_batch_size=size)
    assert ids_of(engine.generate_many(prompts, params)) == lone


@pytest.mark.parametrize("kind", KINDS)
def test_neighbours_that_are_cancelled_and_late_comers(kind: str) -> None:
    engine = Engine(tiny(), heads(kind), RandomPolicy(SHAPES), max_batch_size=5)
    ids = [engine.add(prompt, params) for prompt, params in requests()[:6]]
    engine.step()
    engine.cancel(ids[0])  # of the first row: the last one moves there
    engine.step()
    engine.cancel(ids[5])  # perhaps still waiting
    ids += [engine.add(prompt, params) for prompt, params in requests()[6:]]
    engine.step()
    engine.cancel(ids[7])
    results = [result_of(engine, request_id) for request_id in ids]
    for index, (result, expected) in enumerate(zip(results, alone(), strict=True)):
        if result.finish_reason == "cancelled":
            assert index in (0, 5, 7)
            assert result.token_ids == expected[: len(result.token_ids)]
        else:
            assert result.token_ids == expected
    assert sum(result.finish_reason == "cancelled" for result in results) >= 2
    assert engine.num_cache_bytes == 0


def test_each_request_may_have_a_policy_of_its_own() -> None:
    engine = Engine(tiny(), heads("hydra"), StaticPolicy(chain(2)), max_batch_size=8)
    policies = [None, PlainPolicy(), StaticPolicy(full(3, 2)), RandomPolicy([chain(4), ROOT])]
    drafts_allowed = [{2, 1, 0}, {0}, {12, 3, 0}, {4, 3, 2, 1, 0}]
    params = GenerationParams(20, Sampling(0.7, seed=9))
    ids = [engine.add([1, 2], params, policy) for policy in policies]
    events = {request_id: list[TokenEvent]() for request_id in ids}
    while engine.num_running or engine.num_waiting:
        engine.step()
        for request_id in ids:
            told = engine.take_events(request_id)
            events[request_id] += [each for each in told if isinstance(each, TokenEvent)]
    expected = Engine(tiny()).generate([1, 2], params).token_ids
    for request_id, allowed in zip(ids, drafts_allowed, strict=True):
        own = events[request_id]
        assert tuple(token for event in own for token in event.token_ids) == expected
        assert {event.num_draft_tokens for event in own} <= allowed
        assert max(event.num_draft_tokens for event in own) == max(allowed)


def test_a_policy_that_cannot_run_is_refused_at_once() -> None:
    engine = Engine(tiny(), heads("hydra"), StaticPolicy(chain(2)))
    with pytest.raises(TreeError, match="9 deep but there are 4 draft heads"):
        engine.add([1], policy=StaticPolicy(chain(9)))
    with pytest.raises(BadInput, match="policy static needs draft heads"):
        Engine(tiny()).add([1], policy=StaticPolicy(chain(2)))
    assert engine.num_waiting == 0


def test_heads_that_the_engine_left_out_are_not_called_missing() -> None:
    engine = Engine(tiny(), random_heads(tiny(), "hydra"))
    assert engine.heads is None
    with pytest.raises(BadInput, match="whose own policy never drafts leaves its heads out"):
        engine.add([1], policy=StaticPolicy(chain(2)))


def test_a_policy_without_trees_is_named() -> None:
    with pytest.raises(TreeError, match="policy random has no trees; give at least one"):
        Engine(tiny(), random_heads(tiny(), "hydra"), RandomPolicy([]))


class Boundless(StaticPolicy):
    """Announces one tree, and drafts another."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(chain(1))
        self._drafted = StaticPolicy(tree)

    def begin(self, seed: int) -> Selection:
        return self._drafted.begin(seed)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tree_that_was_not_announced_is_refused_too(kind: str) -> None:
    for tree, said in ((chain(9), "9 deep but there are 4"), (full(9, 1), "rank 8 but the heads")):
        engine = Engine(tiny(), heads(kind), Boundless(tree))
        with pytest.raises(TreeError, match=said):
            engine.generate([1], GenerationParams(30))
        assert (engine.num_running, engine.num_cache_bytes) == (0, 0)
