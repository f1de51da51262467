"""Cases L01 to L04, L10 to L13 and L16 of known faults: is it the target's own text, every time?

L05 and L06, of distributions, stand in `law/test_distribution.py`, L14, L15 and L17, of what is
kept between steps and calls, in `test_committed_state.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch

from draft_heads import KINDS, ToldHeads, exact_heads, heads_by_heart, new_heads, random_heads
from entmtp.bench.rounding import MAX_RATIO, first_difference, float32_twin, rounding_ratio
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import start_from_target
from entmtp.scheduler import RandomPolicy, StaticPolicy
from entmtp.target import TargetModel
from entmtp.target.masks import step_mask
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import markov, ring, ring_order, tiny
from reference import Request, ids_of, random_prompts, run

SPARSE = Tree.from_paths([(1,), (0,), (4,), (4, 3), (1, 6), (4, 3, 2), (1, 6, 0), (4, 3, 2, 1)])
FULL = full(8, 2)


@lru_cache
def forty() -> tuple[tuple[Request, ...], list[tuple[int, ...]]]:
    """Forty requests and what must come out of them."""
    requests = [(prompt, GenerationParams(200)) for prompt in random_prompts(40, 8, longest=40)]
    return tuple(requests), ids_of(run(Engine(tiny(), max_batch_size=40), requests))


@pytest.mark.parametrize("training", ["random", "overfit"])
@pytest.mark.parametrize("is_switching", [False, True], ids=["one tree", "switching"])
@pytest.mark.parametrize("shape", [chain(4), SPARSE, FULL], ids=["chain", "sparse", "full"])
@pytest.mark.parametrize("kind", KINDS)
def test_L01_greedy_is_plain_greedy(
    kind: str, shape: Tree, is_switching: bool, training: str
) -> None:
    heads = (heads_by_heart if training == "overfit" else random_heads)(tiny(), kind)
    # Switching: from one step to the next to another tree, and to none at all.
    policy = RandomPolicy([ROOT, chain(2), shape]) if is_switching else StaticPolicy(shape)
    requests, plain = forty()
    drafted = run(Engine(tiny(), heads, policy, max_batch_size=40), requests)
    assert ids_of(drafted) == plain
    assert {result.finish_reason for result in drafted} == {"length"}


def ratios_of(dtype: torch.dtype, num_prompts: int) -> list[float]:
    """The rounding ratio at every first difference of tree and plain."""
    target = tiny(dtype=dtype)
    prompts = random_prompts(num_prompts, 8, longest=30, seed=2)
    requests = [(prompt, GenerationParams(24)) for prompt in prompts]
    plain = ids_of(run(Engine(target, max_batch_size=1), requests))
    engine = Engine(target, random_heads(target, "medusa"), StaticPolicy(FULL), max_batch_size=1)
    ratios = []
    for prompt, one, other in zip(prompts, plain, ids_of(run(engine, requests)), strict=True):
        place = first_difference(one, other)
        if place is not None:
            prefix, pair = [*prompt, *one[:place]], (one[place], other[place])
            ratio = rounding_ratio(target, float32_twin(target), prefix, pair, Sampling())
            assert ratio is not None
            ratios.append(ratio)
    return ratios


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_L02_differences_in_16_bits_are_rounding(dtype: torch.dtype) -> None:
    ratios = ratios_of(dtype, 40)
    assert all(ratio <= MAX_RATIO for ratio in ratios), ratios


def test_L02_a_wrong_mask_is_not_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    def sees_its_siblings(lengths: Sequence[int], among: torch.Tensor) -> torch.Tensor | None:
        is_prompt = torch.equal(among, torch.ones_like(among).tril())
        return step_mask(lengths, among if is_prompt else torch.ones_like(among))

    monkeypatch.setattr("entmtp.target.model.step_mask", sees_its_siblings)
    ratios = ratios_of(torch.bfloat16, 10)
    assert sum(ratio > MAX_RATIO for ratio in ratios) >= 8, ratios


TIED = (3, 17, 500)


def tied_target(vocab_size: int = 1000) -> TargetModel:
    row = torch.full((vocab_size,), 0.1 / (vocab_size - len(TIED)))
    row[list(TIED)] = 0.3
    return markov(row.expand(vocab_size, -1))


@pytest.mark.parametrize("guessed", [(500, 17, 3), (17, 500, 9), (500, 17, 999)])
def test_L03_ties_go_to_the_lowest_id(guessed: tuple[int, ...]) -> None:
    target, params = tied_target(), GenerationParams(12)
    heads = ToldHeads(target, lambda position, path: guessed[path[-1]])
    engine = Engine(target, heads, StaticPolicy(full(3, 2)))
    for prompt in ([0], [500, 17], [3]):
        assert set(engine.generate(prompt, params).token_ids) == {3}


@pytest.mark.parametrize("num_together", [1, 4])
def test_L03_ties_in_a_batch_and_heads_as_tied_as_the_model(num_together: int) -> None:
    target, params = tied_target(), GenerationParams(13)
    heads = new_heads(target, "medusa")
    start_from_target(heads, target)
    prompts = [[1], [17], [5, 6], [3]]
    for engine in (
        Engine(target, max_batch_size=num_together),
        Engine(target, heads, StaticPolicy(full(3, 2)), max_batch_size=num_together),
    ):
        results = engine.generate_many(prompts, params)
        assert {token for ids in ids_of(results) for token in ids} == {3}
    # All three were drafted at each level, so every step went through the tree.
    assert {result.stats.num_drafts for result in results} == {4}


def test_L03_ties_at_the_border_of_top_k_too() -> None:
    """Whichever token a neighbour's top-k needs, a row keeps its own lowest ids."""
    target = tied_target()
    alone = Engine(target, max_batch_size=1)
    company = Engine(target, max_batch_size=3)
    for seed in range(4):
        two, three, all_of_them = (Sampling(1.0, top_k=k, seed=seed) for k in (2, 3, 0))
        requests = [([0], GenerationParams(30, each)) for each in (two, three, all_of_them)]
        results = ids_of(run(company, requests))
        assert results == ids_of(run(alone, requests))
        assert set(results[0]) == {3, 17}
        assert set(results[1]) == {3, 17, 500}


def test_L04_only_the_likeliest_token_is_said() -> None:
    transitions = torch.tensor([[0.34, 0.33, 0.33], [0.33, 0.33, 0.34], [0.33, 0.34, 0.33]])
    likeliest = transitions.argmax(-1).tolist()
    target = markov(transitions)
    heads = ToldHeads(target, lambda position, path: (2, 1, 0)[path[-1]])
    engine = Engine(target, heads, StaticPolicy(full(3, 3)))
    for start in range(3):
        ids = [start, *engine.generate([start], GenerationParams(30)).token_ids]
        assert ids[1:] == [likeliest[token] for token in ids[:-1]]


def test_L10_the_seed_is_honoured_whatever_the_traffic() -> None:
    heads = random_heads(tiny(), "hydra")
    engine = Engine(tiny(), heads, StaticPolicy(chain(3)), max_batch_size=4)

    def say(seed: int) -> tuple[int, ...]:
        return engine.generate([1], GenerationParams(30, Sampling(2.0, seed=seed))).token_ids

    first = [say(seed) for seed in (0, 1, 2, 3, 2**63 - 1)]
    assert len(set(first)) == 5
    for seed in (7, 8, 9):
        engine.add([2, 3], GenerationParams(25, Sampling(2.0, seed=seed)))
    assert [say(seed) for seed in (0, 1, 2, 3, 2**63 - 1)] == first


def test_L12_forbidden_transitions_never_happen() -> None:
    transitions = torch.tensor(
        [[0.0, 0.6, 0.4, 0.0], [0.5, 0.0, 0.0, 0.5], [0.1, 0.0, 0.0, 0.9], [0.3, 0.3, 0.4, 0.0]]
    )
    target = markov(transitions)
    heads = random_heads(target, "hydra")
    requests = [
        ([i % 4], GenerationParams(30, Sampling((0, 0.3, 1.0)[i % 3], seed=i))) for i in range(8)
    ]
    texts = []
    for size in (1, 2, 4, 8):
        engine = Engine(target, heads, StaticPolicy(full(3, 2)), max_batch_size=size)
        texts.append(ids_of(run(engine, requests)))
        for index, ids in enumerate(texts[-1]):
            said = torch.tensor([index % 4, *ids])
            assert bool((transitions[said[:-1], said[1:]] > 0).all())
    assert texts == 4 * texts[:1]  # whoever the neighbours were


def test_L13_lossy_acceptance_is_asked_for_by_name() -> None:
    heads, policy = random_heads(tiny(), "hydra"), StaticPolicy(FULL)
    default = Engine(tiny(), heads, policy)
    typical = Engine(tiny(), heads, policy, acceptance="typical")
    assert (default.is_lossless, typical.is_lossless) == (True, False)
    prompts = random_prompts(6, 8, longest=10)
    greedy, warm = GenerationParams(30), GenerationParams(30, Sampling(1.0, seed=3))
    plain = Engine(tiny())
    assert ids_of(typical.generate_many(prompts, greedy)) == ids_of(
        plain.generate_many(prompts, greedy)
    )
    expected = ids_of(plain.generate_many(prompts, warm))
    assert ids_of(default.generate_many(prompts, warm)) == expected
    assert ids_of(typical.generate_many(prompts, warm)) != expected


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_L16_right_drafts_are_all_accepted(kind: str, depth: int) -> None:
    heads = exact_heads(ring(), ring_order(12), kind)
    result = Engine(ring(), heads, StaticPolicy(chain(depth))).generate([7], GenerationParams(121))
    assert list(result.token_ids) == [(8 + i) % 12 for i in range(121)]
    assert result.stats.num_accepted_tokens == result.stats.num_draft_tokens
    # 120 tokens behind the first: whole steps, for every depth.
    assert result.stats.num_drafts == 120 // (depth + 1)
    assert result.stats.mean_acceptance_length == depth + 1
