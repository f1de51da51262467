"""The law for steps made of graphs, on a CPU, where the work is done again in place of a replay.

Static inputs, static outputs, node and context buckets, and trees by index are those of a GPU
(`tests/gpu/test_graphs.py` has the graphs themselves).
"""

from __future__ import annotations

from functools import lru_cache

import pytest

from confident import ConfidentPolicy
from draft_heads import KINDS, overfit_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.scheduler import RandomPolicy, StaticPolicy, TreePolicy
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import tiny
from graphed import batch_of, on_graphs
from reference import Request, ids_of, random_prompts, result_of, run

SPARSE = Tree.from_paths([(0,), (1,), (3,), (3, 2), (1, 5), (1, 6), (3, 2, 1), (1, 6, 7)])
SHAPES = (ROOT, chain(1), chain(4), SPARSE, full(3, 3))
POLICIES: dict[str, TreePolicy] = {
    "chain-4": StaticPolicy(chain(4)),
    "full": StaticPolicy(full(3, 3)),
    "random": RandomPolicy(SHAPES),
    "confident": ConfidentPolicy(SHAPES),
}
SAMPLINGS = (
    Sampling(),
    Sampling(0.7, seed=1),
    Sampling(1.3, top_k=5, top_p=0.9, seed=2),
    Sampling(0.9, repetition_penalty=1.2, seed=3),
)
NUM_TOKENS = 20


@lru_cache
def requests() -> tuple[Request, ...]:
    """Ragged: prompts and answers of every length, every way to sample."""
    params = [
        GenerationParams(NUM_TOKENS - index % 5, SAMPLINGS[index % len(SAMPLINGS)])
        for index in range(8)
    ]
    return tuple(zip(random_prompts(8, 8, longest=30, seed=2), params, strict=True))


@lru_cache
def plain() -> list[tuple[int, ...]]:
    """Of PyTorch, kernel by kernel."""
    return ids_of(run(Engine(tiny(), max_batch_size=1), requests()))


@lru_cache
def heads(kind: str) -> DraftHeads:
    return overfit_heads(tiny(), kind, tuple(ids[: NUM_TOKENS - 4] for ids in plain()))


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_law(kind: str, policy: str, size: int) -> None:
    engine = Engine(on_graphs(tiny()), heads(kind), POLICIES[policy], max_batch_size=size)
    results = run(engine, requests())
    assert ids_of(results) == plain()
    assert sum(result.stats.num_accepted_tokens for result in results) > 20
    assert engine.num_cache_bytes == 0


@pytest.mark.parametrize("min_rows", [1, 9])
def test_plain_decoding(min_rows: int) -> None:
    engine = Engine(on_graphs(tiny()), max_batch_size=3, min_rows=min_rows)
    assert ids_of(run(engine, requests())) == plain()


def test_sequences_that_come_and_go() -> None:
    engine = Engine(on_graphs(tiny()), heads("hydra++"), RandomPolicy(SHAPES), max_batch_size=5)
    ids = [engine.add(prompt, params) for prompt, params in requests()[:5]]
    engine.step()
    engine.cancel(ids[0])  # of the first row: the last one moves there
    engine.step()
    ids += [engine.add(prompt, params) for prompt, params in requests()[5:]]
    results = [result_of(engine, request_id) for request_id in ids]
    assert results[0].token_ids == plain()[0][: len(results[0].token_ids)]
    assert ids_of(results[1:]) == plain()[1:]


def test_log_probabilities_are_told_alike() -> None:
    prompt = requests()[0][0]
    asked = [(prompt, GenerationParams(10, Sampling(), logprobs=2))]
    engines = (
        Engine(tiny(), heads("hydra"), StaticPolicy(SPARSE)),
        Engine(on_graphs(tiny()), heads("hydra"), StaticPolicy(SPARSE)),
    )
    one, other = (run(engine, asked)[0].logprobs for engine in engines)
    assert one is not None
    assert other is not None
    assert [token.token_id for token in one] == [token.token_id for token in other]
    for mine, theirs in zip(one, other, strict=True):
        assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_200_switches_of_the_tree_capture_nothing() -> None:
    """After the warm-up, greedy or at a temperature, however short the text becomes."""
    engine = Engine(on_graphs(tiny()), heads("hydra++"), RandomPolicy(SHAPES), max_batch_size=1)
    batch = batch_of(engine)
    before, num_steps = batch.num_captured, 0
    for seed in range(4):
        params = GenerationParams(150, Sampling(0.7 * (seed % 2), seed=seed))
        num_steps += run(engine, [([1, 2, 3], params)])[0].stats.num_drafts
    assert num_steps >= 200
    assert batch.num_captured == before


def test_a_tree_that_was_not_announced_is_drafted_all_the_same() -> None:
    policy = StaticPolicy(full(3, 2))
    engine = Engine(on_graphs(tiny()), heads("hydra"), policy, max_batch_size=2)
    before = batch_of(engine).num_captured
    [(first, one), (second, other)] = requests()[:2]
    ids = [engine.add(first, one), engine.add(second, other, policy=StaticPolicy(SPARSE))]
    assert ids_of([result_of(engine, request_id) for request_id in ids]) == plain()[:2]
    assert batch_of(engine).num_captured > before
