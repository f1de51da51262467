"""Requests in, events out: queueing, cancelling, failing, counting."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from draft_heads import exact_heads, random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, Event, FinishEvent, GenerationParams, TokenEvent
from entmtp.errors import BadInput
from entmtp.scheduler import PlainPolicy, StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import chain, full
from fixtures import ring, ring_order, tiny
from reference import ids_of, result_of


def new_engine(max_batch_size: int = 4, kind: str = "hydra++") -> Engine:
    return Engine(
        tiny(), random_heads(tiny(), kind), StaticPolicy(full(3, 2)), max_batch_size=max_batch_size
    )


def expected(prompt: list[int], num_tokens: int) -> tuple[int, ...]:
    return Engine(tiny()).generate(prompt, GenerationParams(num_tokens)).token_ids


def close(events: Iterator[Event]) -> None:
    events.close()  # type: ignore[attr-defined]


def test_events_tell_all_and_end() -> None:
    events = list(new_engine().stream([1, 2], GenerationParams(20)))
    *steps, last = events
    assert isinstance(last, FinishEvent)
    assert all(isinstance(event, TokenEvent) for event in steps)
    said = [token for event in steps for token in event.token_ids]  # type: ignore[union-attr]
    assert tuple(said) == last.result.token_ids == expected([1, 2], 20)
    for event in steps:
        assert isinstance(event, TokenEvent)
        assert event.num_accepted <= len(event.token_ids)
    stats = last.result.stats
    assert (stats.num_prompt_tokens, stats.num_tokens) == (2, 20)
    assert stats.num_drafts == len(steps) - 1
    assert stats.num_tokens == 1 + stats.num_drafts + stats.num_accepted_tokens
    assert stats.prefill_seconds > 0
    assert stats.step_seconds.total > 0


def test_what_was_accepted_is_told() -> None:
    heads = exact_heads(ring(), ring_order(12), "medusa")
    engine = Engine(ring(), heads, StaticPolicy(chain(3)))
    events = engine.stream([0], GenerationParams(9, stop_token_ids=(7,)))
    told = [
        (e.token_ids, e.num_accepted, e.num_draft_tokens)
        for e in events
        if isinstance(e, TokenEvent)
    ]
    # The first comes from the prompt; the last step is cut in front of its bonus token.
    assert told == [((1,), 0, 0), ((2, 3, 4, 5), 3, 3), ((6, 7), 2, 3)]


def test_statistics_count_positions() -> None:
    heads = exact_heads(ring(), ring_order(12), "hydra")
    stats = Engine(ring(), heads, StaticPolicy(chain(4))).generate([3], GenerationParams(24)).stats
    assert stats.num_drafts == 5
    assert stats.num_accepted_tokens_per_pos == [5, 5, 4, 4]
    assert stats.num_accepted_tokens == stats.num_draft_tokens == 18
    assert stats.mean_acceptance_length == 1 + 18 / 5


def test_more_requests_than_places_wait() -> None:
    engine = new_engine(max_batch_size=2)
    ids = [engine.add([token], GenerationParams(5 + token)) for token in range(5)]
    assert (engine.num_waiting, engine.num_running, engine.num_cache_bytes) == (5, 0, 0)
    engine.step()
    assert (engine.num_waiting, engine.num_running) == (3, 2)
    results = [result_of(engine, request_id) for request_id in ids]
    assert [r.token_ids for r in results] == [expected([t], 5 + t) for t in range(5)]
    assert (engine.num_waiting, engine.num_running, engine.num_cache_bytes) == (0, 0, 0)


@pytest.mark.parametrize("place", range(3))
def test_cancelling_frees_the_row_at_once(place: int) -> None:
    engine = new_engine()
    prompts = [[1], [2, 3, 4], [5] * 9]
    ids = [engine.add(prompt, GenerationParams(40)) for prompt in prompts]
    engine.step()
    lengths = engine.cache_lengths
    engine.cancel(ids[place])
    assert sorted([*engine.cache_lengths, lengths[place]]) == sorted(lengths)
    assert engine.num_running == 2
    for index, (request_id, prompt) in enumerate(zip(ids, prompts, strict=True)):
        result = result_of(engine, request_id)
        whole = expected(prompt, 40)
        if index == place:
            assert result.finish_reason == "cancelled"
            assert 0 < len(result.token_ids) < 40
            assert result.token_ids == whole[: len(result.token_ids)]
        else:
            assert (result.finish_reason, result.token_ids) == ("length", whole)
    assert engine.num_cache_bytes == 0


def test_cancelling_the_last_one_frees_the_memory() -> None:
    engine = new_engine()
    request_id = engine.add([1], GenerationParams(40))
    engine.step()
    assert engine.num_cache_bytes > 0
    engine.cancel(request_id)
    assert (engine.num_running, engine.num_cache_bytes, engine.cache_lengths) == (0, 0, [])
    assert result_of(engine, request_id).finish_reason == "cancelled"


def test_cancelling_what_waits_or_is_over_or_never_was() -> None:
    engine = new_engine(max_batch_size=1)
    first, second = (engine.add([token], GenerationParams(4)) for token in (1, 2))
    engine.step()
    engine.cancel(second)
    assert engine.num_waiting == 0
    result = result_of(engine, second)
    assert (result.token_ids, result.finish_reason) == ((), "cancelled")
    assert result_of(engine, first).token_ids == expected([1], 4)
    for request_id in (first, second, 99):
        engine.cancel(request_id)
        engine.forget(request_id)


def test_closing_a_stream_frees_the_memory() -> None:
    engine = new_engine()
    events = engine.stream([1, 2], GenerationParams(100))
    for _ in range(3):
        next(events)
    assert engine.num_cache_bytes > 0
    close(events)
    assert (engine.num_running, engine.num_cache_bytes) == (0, 0)
    with pytest.raises(StopIteration):
        next(events)


def test_a_stream_that_nobody_reads_leaves_nothing() -> None:
    engine = new_engine()
    events = engine.stream([1, 2], GenerationParams(100))
    close(events)
    assert (engine.num_waiting, engine.num_running) == (0, 0)
    assert engine.generate([1], GenerationParams(3)).token_ids == expected([1], 3)
    with pytest.raises(BadInput, match="is empty"):
        engine.stream([])  # at once, not with the first event


def test_two_streams_in_turns() -> None:
    engine = new_engine()
    one = engine.stream([1], GenerationParams(15))
    other = engine.stream([2, 2], GenerationParams(30))
    said: dict[int, list[int]] = {0: [], 1: []}
    open_streams = {0: one, 1: other}
    while open_streams:
        for name, events in list(open_streams.items()):
            event = next(events)
            if isinstance(event, TokenEvent):
                said[name] += event.token_ids
            else:
                del open_streams[name]
    assert tuple(said[0]) == expected([1], 15)
    assert tuple(said[1]) == expected([2, 2], 30)


def test_events_of_a_request_that_is_over_are_none() -> None:
    engine = new_engine()
    request_id = engine.add([1], GenerationParams(5))
    assert result_of(engine, request_id).finish_reason == "length"
    # Not for ever waiting for what will never come.
    assert list(engine.events(request_id)) == []
    assert list(engine.events(12345)) == []
    other = engine.add([1], GenerationParams(5))
    events = engine.events(other)
    next(events)
    engine.forget(other)
    assert list(events) == []


def fail(*_: object, **__: object) -> None:
    raise RuntimeError("out of memory")


Break = Callable[[pytest.MonkeyPatch], None]
FAULTS: dict[str, Break] = {
    "prefill": lambda patch: patch.setattr(TargetModel, "prefill", fail),
    "forward": lambda patch: patch.setattr(TargetModel, "forward", fail),
    "logits": lambda patch: patch.setattr(TargetModel, "logits", fail),
    "draft": lambda patch: patch.setattr(random_heads(tiny(), "hydra++"), "fill", fail),
    "observe": lambda patch: patch.setattr(random_heads(tiny(), "hydra++"), "observe", fail),
    "keep": lambda patch: patch.setattr("entmtp.target.cache.KVCache.keep", fail),
}


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_ends_every_request_and_the_next_one_works(
    fault: str, is_running: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine(max_batch_size=2)
    ids = [engine.add([token], GenerationParams(30)) for token in (1, 2, 3)]
    if is_running:
        engine.step()
        engine.cancel(ids[0])  # so that one has to begin
    with monkeypatch.context() as patch:
        FAULTS[fault](patch)
        with pytest.raises(RuntimeError, match="out of memory"):
            engine.step()
    assert (engine.num_running, engine.num_waiting, engine.num_cache_bytes) == (0, 0, 0)
    # Whoever waits for one of them hears of its end.
    assert [result_of(engine, each).finish_reason for each in ids] == ["cancelled"] * 3
    assert engine.generate([4, 5], GenerationParams(20)).token_ids == expected([4, 5], 20)


def test_an_error_in_a_stream_is_raised_there(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = new_engine()
    events = engine.stream([1, 2], GenerationParams(100))
    next(events)
    with monkeypatch.context() as patch:
        patch.setattr(TargetModel, "forward", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            list(events)
    assert engine.generate([1], GenerationParams(3)).token_ids == expected([1], 3)


def test_a_bad_request_among_many_runs_none() -> None:
    engine = new_engine()
    with pytest.raises(BadInput, match="token id 8 is outside"):
        engine.generate_many([[1], [2], [8]], GenerationParams(5))
    assert (engine.num_waiting, engine.num_running) == (0, 0)


def test_wrong_options_are_named() -> None:
    with pytest.raises(BadInput, match="acceptance is 'sloppy'"):
        Engine(tiny(), acceptance="sloppy")
    with pytest.raises(BadInput, match=r"stop is the string 'x'"):
        GenerationParams(stop="x")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="stop strings need a tokenizer"):
        new_engine().add([1], GenerationParams(stop=("x",)))


def test_M13_broken_heads_cost_speed_and_nothing_else() -> None:
    heads = random_heads(tiny(), "hydra", seed=5)
    for weight in heads.parameters():
        weight.fill_(float("nan"))
    engine = Engine(tiny(), heads, StaticPolicy(full(3, 2)))
    for sampling in (Sampling(), Sampling(1.0, seed=2)):
        params = GenerationParams(20, sampling)
        assert (
            engine.generate([1, 2], params).token_ids
            == Engine(tiny()).generate([1, 2], params).token_ids
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_M12_other_dtypes_run(dtype: torch.dtype) -> None:
    target = tiny(dtype=dtype)
    for kind in ("medusa", "hydra", "hydra++"):
        engine = Engine(target, random_heads(target, kind), StaticPolicy(full(3, 2)))
        results = engine.generate_many([[1], [2, 3]], GenerationParams(12))
        assert [len(result.token_ids) for result in results] == [12, 12]


@pytest.mark.parametrize("name", ["max_batch_size", "min_rows"])
@pytest.mark.parametrize("value", [0, -1, 2.5, True])
def test_a_count_that_lets_nothing_run_is_named(name: str, value: float) -> None:
    """A batch of nobody would wait for ever."""
    with pytest.raises(BadInput, match=rf"{name} is {value}; give a count from 1 up"):
        Engine(tiny(), **{name: value})  # type: ignore[arg-type]


def test_samples_may_bring_a_policy_of_their_own() -> None:
    engine = new_engine()
    params = GenerationParams(12, Sampling(temperature=1.0, seed=5))
    alone = Engine(tiny()).generate_samples([1, 2], params, 3)
    results = [result_of(engine, one) for one in engine.add_samples([1, 2], params, 3)]
    assert sum(result.stats.num_draft_tokens for result in results) > 0
    own = [result_of(engine, x) for x in engine.add_samples([1, 2], params, 3, PlainPolicy())]
    assert [result.stats.num_draft_tokens for result in own] == [0, 0, 0]
    assert ids_of(own) == ids_of(results) == ids_of(alone)
