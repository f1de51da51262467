"""The law with every processor at once: what was said early in a block counts for what follows."""

from __future__ import annotations

from functools import lru_cache

import pytest

from draft_heads import KINDS, overfit_heads, random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.engine.request import resolve
from entmtp.heads import DraftHeads
from entmtp.scheduler import RandomPolicy, StaticPolicy, TreePolicy
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import tiny, tiny_model
from reference import Request, ids_of, random_prompts, run, slow_ids

NUM_TOKENS = 24
SPARSE = Tree.from_paths([(0,), (1,), (3,), (3, 2), (1, 5), (3, 2, 1), (3, 2, 4), (3, 2, 4, 0)])
FULL = full(8, 2)
WORDS = ((0,), (1, 2), (3, 4, 5), (6, 6, 6), (2, 7))
EVERYTHING = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.25,
    "logit_bias": ((5, 1.5), (1, -2.0)),
    "banned_ids": WORDS,
}
EACH = (
    {},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.8, "min_p": 0.3},
    {"presence_penalty": 2.0},
    {"frequency_penalty": 2.0},
    {"frequency_penalty": -2.0},
    {"logit_bias": ((2, 100.0), (4, 99.0)), "frequency_penalty": 2.0},
    {"banned_ids": WORDS},
    EVERYTHING,
    {**EVERYTHING, "min_p": 0.05, "top_k": 6, "top_p": 0.95},
)


@lru_cache
def requests() -> tuple[Request, ...]:
    """All ways to process, greedy and drawn; some with an end that comes late."""
    samplings = [
        Sampling(temperature, seed=seed, **changes)  # type: ignore[arg-type]
        for temperature in (0.0, 1.1)
        for seed, changes in enumerate(EACH)
    ]
    prompts = random_prompts(len(samplings), 8, longest=20, seed=5)
    params = [
        GenerationParams(
            NUM_TOKENS,
            sampling,
            stop_token_ids=(7, 4) if index % 3 == 0 else (),
            min_tokens=10 if index % 3 == 0 else 0,
        )
        for index, sampling in enumerate(samplings)
    ]
    return tuple(zip(prompts, params, strict=True))


@lru_cache
def alone() -> list[tuple[int, ...]]:
    return ids_of(run(Engine(tiny(), max_batch_size=1), requests()))


def test_plain_decoding_is_that_of_transformers() -> None:
    model = tiny_model()
    lengths = set()
    for (prompt, params), ids in zip(requests(), alone(), strict=True):
        sampling = resolve(tiny(), list(prompt), params).sampling
        expected = slow_ids(model, prompt, sampling, NUM_TOKENS)
        assert ids == expected[: len(ids)]
        ends = [at for at, token in enumerate(ids) if token in params.stop_token_ids]
        assert ends == ([len(ids) - 1] if len(ids) < NUM_TOKENS else ends[:1])
        assert len(ids) > params.min_tokens
        lengths.add(len(ids))
    assert len(lengths) > 2  # some ended early


def test_every_processor_matters() -> None:
    """Or the law would say nothing of it."""
    bare = [(prompt, GenerationParams(NUM_TOKENS, Sampling())) for prompt, _ in requests()]
    untouched = ids_of(run(Engine(tiny()), bare))[: len(EACH)]
    changed = alone()[: len(EACH)]
    same = [one == other for one, other in zip(untouched, changed, strict=True)]
    assert sum(same[1:]) <= 1


@lru_cache
def heads(kind: str, training: str) -> DraftHeads:
    if training == "random":
        return random_heads(tiny(), kind)
    texts = tuple(
        (prompt[-1], *ids)
        for (prompt, _), ids in zip(requests(), alone(), strict=True)
        if len(ids) == NUM_TOKENS
    )
    return overfit_heads(tiny(), kind, texts)


POLICIES: dict[str, TreePolicy] = {
    "chain": StaticPolicy(chain(4)),
    "sparse": StaticPolicy(SPARSE),
    "full": StaticPolicy(FULL),
    "random": RandomPolicy([ROOT, chain(2), SPARSE, FULL]),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("training", ["random", "overfit"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_law_with_processors(kind: str, training: str, policy: str) -> None:
    """Rows with different processors in one batch; each is what plain decoding says alone."""
    engine = Engine(tiny(), heads(kind, training), POLICIES[policy], max_batch_size=7)
    results = run(engine, requests())
    assert ids_of(results) == alone()
    if (training, policy) != ("random", "chain"):
        assert sum(result.stats.num_accepted_tokens for result in results) > 10


def test_greedy_is_exact_in_typical_acceptance_too() -> None:
    greedy = [one for one in requests() if one[1].sampling.is_greedy]
    engine = Engine(tiny(), heads("hydra", "overfit"), StaticPolicy(FULL), acceptance="typical")
    assert ids_of(run(engine, greedy)) == alone()[: len(greedy)]


def test_typical_acceptance_keeps_nothing_that_is_ruled_out() -> None:
    """Every node is processed with its own path: no banned word, not even inside a block."""
    engine = Engine(tiny(), heads("hydra", "random"), StaticPolicy(FULL), acceptance="typical")
    words = ((0,), (1, 2), (3, 3), (5, 6), (6, 7, 1))
    sampling = [Sampling(1.5, seed=seed, banned_ids=words, top_k=6) for seed in range(8)]
    asked = [([seed], GenerationParams(60, one)) for seed, one in enumerate(sampling)]
    results = run(engine, asked)
    assert sum(result.stats.num_accepted_tokens for result in results) > 100
    for seed, result in enumerate(results):
        said = [seed, *result.token_ids]
        found = [word for at in range(1, len(said)) for word in words if ends(said[: at + 1], word)]
        assert found == []


def ends(said: list[int], word: tuple[int, ...]) -> bool:
    return tuple(said[-len(word) :]) == word
