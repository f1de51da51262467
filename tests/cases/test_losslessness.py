"""Cases L01 to L04 and L10 to L17 of known faults: is it the target's own text, every time?

L05 and L06, of distributions, stand in `law/test_distribution.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pytest
import torch

from draft_heads import KINDS, ToldHeads, exact_heads, overfit_heads, random_heads
from entmtp.bench.rounding import MAX_RATIO, first_difference, float32_twin, rounding_ratio
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams, Result, TokenEvent
from entmtp.heads import DraftHeads
from entmtp.scheduler import RandomPolicy, StaticPolicy, TreePolicy
from entmtp.target import TargetModel
from entmtp.target.masks import step_mask
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import markov, ring, ring_order, tiny
from reference import Request, ids_of, random_prompts, run

SPARSE = Tree.from_paths([(1,), (0,), (4,), (4, 3), (1, 6), (4, 3, 2), (1, 6, 0), (4, 3, 2, 1)])
FULL = full(8, 2)


def known_texts(target: TargetModel) -> tuple[tuple[int, ...], ...]:
    """What the target says after each token alone."""
    starts = range(target.vocab_size)
    results = run(Engine(target), [([token], GenerationParams(40)) for token in starts])
    return tuple((token, *ids) for token, ids in zip(starts, ids_of(results), strict=True))


def overfit(kind: str) -> DraftHeads:
    return overfit_heads(tiny(), kind, known_texts(tiny()))


@lru_cache
def forty() -> tuple[tuple[Request, ...], list[tuple[int, ...]]]:
    """Forty requests and what must come out of them."""
    requests = [(prompt, GenerationParams(200)) for prompt in random_prompts(40, 8, longest=40)]
    return tuple(requests), ids_of(run(Engine(tiny(), max_batch_size=40), requests))


@pytest.mark.parametrize(
    ("kind", "training", "policy"),
    [
        ("medusa", "random", StaticPolicy(FULL)),
        ("hydra", "overfit", StaticPolicy(chain(4))),
        ("hydra++", "overfit", StaticPolicy(SPARSE)),
        ("hydra", "random", RandomPolicy([ROOT, chain(2), SPARSE])),
    ],
    ids=["full", "chain", "sparse", "a different tree each step"],
)
def test_L01_greedy_is_plain_greedy(kind: str, training: str, policy: TreePolicy) -> None:
    heads = overfit(kind) if training == "overfit" else random_heads(tiny(), kind)
    requests, plain = forty()
    drafted = run(Engine(tiny(), heads, policy, max_batch_size=40), requests)
    assert ids_of(drafted) == plain
    assert {result.finish_reason for result in drafted} == {"length"}


def bf16_ratios(num_prompts: int) -> list[float]:
    """The rounding ratio at every first difference of tree and plain, in bf16."""
    target = tiny(dtype=torch.bfloat16)
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


def test_L02_differences_in_16_bits_are_rounding() -> None:
    ratios = bf16_ratios(40)
    assert all(ratio <= MAX_RATIO for ratio in ratios), ratios


def test_L02_a_wrong_mask_is_not_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    def sees_its_siblings(lengths: Sequence[int], among: torch.Tensor) -> torch.Tensor | None:
        is_prompt = torch.equal(among, torch.ones_like(among).tril())
        return step_mask(lengths, among if is_prompt else torch.ones_like(among))

    monkeypatch.setattr("entmtp.target.model.step_mask", sees_its_siblings)
    ratios = bf16_ratios(10)
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
    plain = Engine(target)
    for results in (plain.generate_many([[1], [17], [5, 6], [3]], params), [plain.generate([9])]):
        assert {token for ids in ids_of(results) for token in ids} == {3}


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
    prompt, num_tokens = [5, 1, 6], 120
    plain = Engine(tiny()).generate(prompt, GenerationParams(num_tokens)).token_ids
    text = [*prompt, *plain, *[0] * 8]
    heads = ToldHeads(
        tiny(), lambda at, path: PATTERNS[pattern](len(path), path[-1], text[at + len(path)])
    )
    result = step_by_step(Engine(tiny(), heads, StaticPolicy(full(3, 3))), prompt, num_tokens)
    assert result.token_ids == plain
    steps_of = {"all rejected": 119, "cut at depth 2": 60, "first rejected": 30}
    steps_of |= {"last child": 30, "all accepted": 30}
    assert result.stats.num_drafts == steps_of[pattern]


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


def same(one: Result, other: Result) -> bool:
    """The same text in the same steps."""
    stats = [(r.stats.num_drafts, r.stats.num_accepted_tokens_per_pos) for r in (one, other)]
    return one.token_ids == other.token_ids and stats[0] == stats[1]


@pytest.mark.parametrize("kind", KINDS)
def test_L17_nothing_is_left_over_from_the_last_call(kind: str) -> None:
    long, short = random_prompts(1, 8, longest=1)[0] * 60, [4, 2]
    params = GenerationParams(30)

    def fresh() -> Engine:
        return Engine(tiny(), overfit(kind), RandomPolicy([chain(4), SPARSE, ROOT]))

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


@pytest.mark.parametrize("kind", KINDS)
def test_L17_nothing_is_left_over_from_an_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = GenerationParams(30)
    heads = random_heads(tiny(), kind)
    engine = Engine(tiny(), heads, StaticPolicy(SPARSE))
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
