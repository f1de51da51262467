"""The law: whatever the heads, the trees and the sampling, the ids are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import cycle

import pytest

from bank_policies import BANK_POLICIES
from confident import ConfidentPolicy
from draft_heads import KINDS, overfit_heads, random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.scheduler import RandomPolicy, StaticPolicy, TreePolicy
from entmtp.target import TargetModel
from entmtp.trees import ROOT, Tree, chain, full, medusa_63
from fixtures import tiny, tiny_model
from reference import Request, ids_of, random_prompts, result_of, run, slow_ids

# Ranks with gaps, and children with children that are not the first ones.
SPARSE = Tree.from_paths(
    [(0,), (1,), (3,), (3, 2), (1, 5), (1, 6), (3, 2, 1), (3, 2, 4), (3, 2, 4, 0), (1, 6, 7)]
)
FULL = full(8, 2)
SHAPES = (ROOT, chain(1), chain(4), SPARSE, FULL, full(3, 3), Tree.from_paths([(7,), (7, 0)]))

POLICIES: dict[str, Callable[[], TreePolicy]] = {
    "chain-4": lambda: StaticPolicy(chain(4)),
    "chain-1": lambda: StaticPolicy(chain(1)),
    "sparse": lambda: StaticPolicy(SPARSE),
    "full": lambda: StaticPolicy(FULL),
    "medusa-63": lambda: StaticPolicy(medusa_63()),
    "random": lambda: RandomPolicy(SHAPES),
    "confident": lambda: ConfidentPolicy((chain(2), SPARSE, full(3, 3), FULL)),
}
SAMPLINGS = (
    Sampling(),
    *(
        Sampling(temperature, top_k, top_p, seed)
        for temperature in (0.7, 1.3)
        for seed, (top_k, top_p) in enumerate([(0, 1.0), (3, 1.0), (0, 0.8), (5, 0.9)])
    ),
)
# The tree of mc_sim_7b_63 has ranks up to 9: it needs a vocabulary of more than 8.
MODELS = {"llama": 8, "qwen2": 12, "qwen3": 12}
NUM_TOKENS = 24


@lru_cache
def model(arch: str) -> TargetModel:
    return tiny(arch, vocab_size=MODELS[arch])


@lru_cache
def requests(arch: str) -> tuple[Request, ...]:
    """Two prompts of different length for every way to sample."""
    prompts = random_prompts(2 * len(SAMPLINGS), MODELS[arch], longest=20)
    params = [GenerationParams(NUM_TOKENS, sampling) for sampling in 2 * SAMPLINGS]
    return tuple(zip(prompts, params, strict=True))


@lru_cache
def plain(arch: str) -> list[tuple[int, ...]]:
    return ids_of(run(Engine(model(arch), max_batch_size=1), requests(arch)))


def heads(arch: str, kind: str, training: str) -> DraftHeads:
    if training == "random":
        return random_heads(model(arch), kind)
    # All greedy and sampled answers, with as much of the prompt as every one has.
    texts = zip(requests(arch), plain(arch), strict=True)
    return overfit_heads(model(arch), kind, tuple((prompt[-1], *ids) for (prompt, _), ids in texts))


CASES = [
    pytest.param(arch, kind, training, policy, id=f"{arch}-{kind}-{training}-{policy}")
    for arch, vocab_size in MODELS.items()
    for kind in KINDS
    for training in ("random", "overfit")
    for policy in POLICIES
    if policy != "medusa-63" or vocab_size > medusa_63().max_rank
]


@pytest.mark.parametrize("arch", MODELS)
def test_plain_decoding_equals_whole_forwards_without_a_cache(arch: str) -> None:
    bare = tiny_model(arch, vocab_size=MODELS[arch])
    for (prompt, params), ids in zip(requests(arch), plain(arch), strict=True):
        assert ids == slow_ids(bare, prompt, params.sampling, NUM_TOKENS)


@pytest.mark.parametrize(("arch", "kind", "training", "policy"), CASES)
def test_the_law(arch: str, kind: str, training: str, policy: str) -> None:
    engine = Engine(model(arch), heads(arch, kind, training), POLICIES[policy]())
    results = run(engine, requests(arch))
    assert ids_of(results) == plain(arch)
    assert {result.finish_reason for result in results} == {"length"}
    if training == "overfit":
        # Not in vain: much of it was drafted.
        num_steps = sum(result.stats.num_drafts for result in results)
        assert num_steps < 0.9 * len(results) * (NUM_TOKENS - 1)


@pytest.mark.parametrize(("kind", "size"), [("medusa", 8), ("hydra", 1), ("hydra", 8)])
@pytest.mark.parametrize("policy", BANK_POLICIES)
def test_policies_over_a_bank(policy: str, kind: str, size: int) -> None:
    """At every temperature, alone and in company, where rows are shared out."""
    asked, expected = requests("llama")[-size - 1 :], plain("llama")[-size - 1 :]
    for training in ("random", "overfit"):
        engine = Engine(
            model("llama"),
            heads("llama", kind, training),
            BANK_POLICIES[policy](),
            max_batch_size=size,
        )
        assert ids_of(run(engine, asked)) == expected
        assert engine.num_cache_bytes == 0


@pytest.mark.parametrize("kind", KINDS)
def test_every_policy_in_one_batch(kind: str) -> None:
    engine = Engine(
        model("llama"), heads("llama", kind, "overfit"), POLICIES["full"](), max_batch_size=8
    )
    policies = [make() for make in (*POLICIES.values(), *BANK_POLICIES.values())]
    policies = [policy for policy in policies if policy.name != "static"]
    asked = list(zip(policies, cycle(zip(requests("llama"), plain("llama"), strict=True))))
    ids = [engine.add(*request, policy) for policy, (request, _) in asked]
    said = [result_of(engine, request_id).token_ids for request_id in ids]
    assert said == [expected for _, (_, expected) in asked]


@pytest.mark.parametrize("policy", ["chain-4", "full", "random", "confident"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_sequence_at_a_time(kind: str, policy: str) -> None:
    engine = Engine(
        model("llama"),
        heads("llama", kind, "overfit"),
        POLICIES[policy](),
        max_batch_size=1,
    )
    assert ids_of(run(engine, requests("llama"))) == plain("llama")


@pytest.mark.parametrize("arch", MODELS)
def test_a_full_tree_always_holds_the_way(arch: str) -> None:
    """Two drafts are accepted in every step of a tree that holds all paths of two tokens."""
    everything = full(MODELS[arch], 2)
    engine = Engine(model(arch), random_heads(model(arch), "hydra"), StaticPolicy(everything))
    for result in run(engine, requests(arch)):
        num_steps = result.stats.num_drafts
        # The first token comes from the prompt; the last step may be cut by the limit.
        assert num_steps == -(-(NUM_TOKENS - 1) // 3)
        assert result.stats.num_accepted_tokens == NUM_TOKENS - 1 - num_steps
    assert engine.num_cache_bytes == 0


@pytest.mark.parametrize("min_rows", [5, 100])
def test_padding_rows_change_nothing(min_rows: int) -> None:
    for policy in ("chain-4", "random"):
        engine = Engine(
            model("llama"),
            heads("llama", "hydra++", "overfit"),
            POLICIES[policy](),
            min_rows=min_rows,
        )
        assert ids_of(run(engine, requests("llama"))) == plain("llama")
    engine = Engine(model("llama"), min_rows=min_rows)
    assert ids_of(run(engine, requests("llama"))) == plain("llama")
