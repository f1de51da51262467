"""Sequences with their own everything, that join, leave and are cancelled between any two steps."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from draft_heads import KINDS, overfit_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams, Result, TokenEvent
from entmtp.heads import DraftHeads
from entmtp.scheduler import PlainPolicy, RandomPolicy, StaticPolicy
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import tiny
from reference import Request, ids_of, random_prompts, result_of, run

NUM_REQUESTS = 24
SHAPES = (ROOT, chain(1), chain(4), full(3, 2), Tree.from_paths([(2,), (2, 1), (5,), (5, 0)]))
POLICIES = (None, PlainPolicy(), RandomPolicy(SHAPES), *(StaticPolicy(tree) for tree in SHAPES[1:]))


@lru_cache
def pool() -> tuple[tuple[Request, ...], list[Result]]:
    """Requests of every kind, and what each gives alone and plainly."""
    prompts = random_prompts(NUM_REQUESTS, 8, longest=24, seed=11)
    requests = tuple(
        (
            prompt,
            GenerationParams(
                max_tokens=(0, 1, 2, 9, 17, 24)[place % 6],
                sampling=Sampling(0.6 * (place % 3), place % 4, 1 - 0.3 * (place % 2), seed=place),
                stop_token_ids=(place % 8,) if place % 5 == 0 else (),
            ),
        )
        for place, prompt in enumerate(prompts)
    )
    return requests, run(Engine(tiny(), max_batch_size=1), requests)


@lru_cache
def heads(kind: str) -> DraftHeads:
    texts = run(Engine(tiny()), [([token], GenerationParams(24)) for token in range(8)])
    return overfit_heads(tiny(), kind, tuple(ids_of(texts)))


@lru_cache
def alone_with_drafts(kind: str, place: int, policy: int) -> Result:
    engine = new_engine(kind, 1)
    prompt, params = pool()[0][place]
    return result_of(engine, engine.add(prompt, params, POLICIES[policy]))


def new_engine(kind: str, size: int) -> Engine:
    return Engine(tiny(), heads(kind), StaticPolicy(full(3, 2)), max_batch_size=size)


class Company:
    """An engine, and what was heard of each request so far."""

    def __init__(self, kind: str, size: int) -> None:
        self.kind = kind
        self.engine = new_engine(kind, size)
        self.asked: dict[int, int] = {}
        self.policies: dict[int, int] = {}
        self.said: dict[int, list[int]] = {}
        self.over: dict[int, Result] = {}

    def add(self, place: int, policy: int) -> None:
        prompt, params = pool()[0][place]
        request_id = self.engine.add(prompt, params, POLICIES[policy])
        self.asked[request_id], self.said[request_id] = place, []
        self.policies[request_id] = policy

    def cancel(self, which: int) -> None:
        if self.asked:
            self.engine.cancel(list(self.asked)[which % len(self.asked)])
        self.listen()

    def step(self) -> None:
        self.engine.step()
        self.listen()

    def listen(self) -> None:
        for request_id in self.asked:
            for event in self.engine.take_events(request_id):
                if isinstance(event, TokenEvent):
                    self.said[request_id] += event.token_ids
                elif isinstance(event, FinishEvent):
                    self.over[request_id] = event.result
        self.check_cache()

    def check_cache(self) -> None:
        """It holds all that running sequences said but their last token, and nothing else."""
        running = [
            len(pool()[0][place][0]) + len(self.said[request_id]) - 1
            for request_id, place in self.asked.items()
            if request_id not in self.over and self.said[request_id]
        ]
        assert sorted(self.engine.cache_lengths) == sorted(running)

    def check_results(self) -> None:
        for request_id, place in self.asked.items():
            result, alone = self.over[request_id], pool()[1][place]
            assert list(result.token_ids) == self.said[request_id]
            if result.finish_reason == "cancelled":
                assert result.token_ids == alone.token_ids[: len(result.token_ids)]
            else:
                assert result.token_ids == alone.token_ids
                assert result.finish_reason == alone.finish_reason
                # The same drafts were kept in the same steps, too: its heads saw only its own text.
                own = alone_with_drafts(self.kind, place, self.policies[request_id]).stats
                assert result.stats.num_drafts == own.num_drafts
                assert result.stats.num_draft_tokens == own.num_draft_tokens
                assert result.stats.num_accepted_tokens_per_pos == own.num_accepted_tokens_per_pos


Verb = tuple[str, int, int]
places = st.integers(0, NUM_REQUESTS - 1)
adds = st.tuples(st.just("add"), places, st.integers(0, len(POLICIES) - 1))
steps = st.tuples(st.just("step"), st.integers(1, 4), st.just(0))
cancels = st.tuples(st.just("cancel"), st.integers(0, 99), st.just(0))
starts = st.lists(adds, min_size=4, max_size=8)
verbs = st.lists(st.one_of(adds, adds, steps, steps, cancels), min_size=4, max_size=16)


@given(starts, verbs, st.sampled_from(KINDS), st.integers(2, 6))
@settings(max_examples=12)
def test_in_any_company_each_gives_what_it_gives_alone(
    start: list[Verb], later: list[Verb], kind: str, size: int
) -> None:
    company = Company(kind, size)
    for verb, number, policy in [*start, *later]:
        if verb == "add":
            company.add(number, policy)
        elif verb == "cancel":
            company.cancel(number)
        else:
            for _ in range(number):
                company.step()
    while company.engine.num_running or company.engine.num_waiting:
        company.step()
    company.check_results()
    assert company.engine.num_cache_bytes == 0
