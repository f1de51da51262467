"""Cases B01 to B18 of known faults: ends of texts, limits, contexts and prompts.

Those of stop strings stand in `test_streamed_text.py`.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from draft_heads import KINDS, ToldHeads, exact_heads, new_heads, random_heads
from entmtp.data import Message
from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams
from entmtp.errors import BadInput, TreeError
from entmtp.scheduler import RandomPolicy, StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import (
    BOS,
    ring,
    ring_order,
    script,
    script_order,
    tiny,
    tiny_model,
)
from reference import ids_of, random_prompts, run, slow_ids

FULL = full(8, 2)


def ring_engine(depth: int = 4, kind: str = "medusa", max_batch_size: int = 8) -> Engine:
    """Says depth + 1 tokens a step, always."""
    heads = exact_heads(ring(), ring_order(12), kind)
    return Engine(ring(), heads, StaticPolicy(chain(depth)), max_batch_size=max_batch_size)


@pytest.mark.parametrize("k", range(13))
def test_B01_the_end_inside_a_block_ends_the_text(k: int) -> None:
    heads = random_heads(tiny(), "hydra")
    prompt, num_tokens = [3, 1, 4], 30
    plain = Engine(tiny()).generate(prompt, GenerationParams(num_tokens)).token_ids
    end = plain[k]
    expected = plain[: plain.index(end) + 1]
    params = GenerationParams(num_tokens, stop_token_ids=(end,))
    for policy in (StaticPolicy(FULL), RandomPolicy([ROOT, FULL, chain(3)])):
        result = Engine(tiny(), heads, policy).generate(prompt, params)
        assert (result.token_ids, result.finish_reason) == (expected, "stop")
        assert result.stats.num_tokens == len(expected)
    # Of a block of 5, the (k + 1)th token of the text.
    params = GenerationParams(num_tokens, stop_token_ids=((8 + k) % 12,))
    result = ring_engine().generate([7], params)
    assert result.token_ids == tuple((8 + i) % 12 for i in range(min(k, k % 12) + 1))
    assert result.finish_reason == "stop"


def test_B01_the_end_has_no_text_and_nothing_follows_it() -> None:
    text = "hé!"
    target = script(text)
    for depth in range(1, 5):
        heads = exact_heads(target, script_order(text), "medusa")
        engine = Engine(target, heads, StaticPolicy(chain(depth)))
        events = list(engine.stream([BOS], GenerationParams(20)))
        assert "".join(event.text for event in events) == text
        last = events[-1]
        assert isinstance(last, FinishEvent)
        assert (last.result.text, last.result.finish_reason) == (text, "stop")
        assert sum(len(e.token_ids) for e in events[:-1] if not isinstance(e, FinishEvent)) == 5


def test_B01_an_end_that_the_target_rejects_ends_nothing() -> None:
    prompt, target = [3, 1, 4], tiny()
    said = Engine(target).generate(prompt, GenerationParams(40)).token_ids
    end = max(range(8), key=lambda token: said.index(token) if token in said else 40)
    params = GenerationParams(40, stop_token_ids=(end,))
    plain = Engine(target).generate(prompt, params)
    assert len(plain.token_ids) > 5
    heads = ToldHeads(target, lambda position, path: end)
    result = Engine(target, heads, StaticPolicy(chain(4))).generate(prompt, params)
    assert (result.token_ids, result.finish_reason) == (plain.token_ids, plain.finish_reason)


@pytest.mark.parametrize("max_tokens", range(1, 17))
def test_B02_as_many_tokens_as_were_asked_for(max_tokens: int) -> None:
    result = ring_engine().generate([2], GenerationParams(max_tokens))
    assert list(result.token_ids) == [(3 + i) % 12 for i in range(max_tokens)]
    assert result.finish_reason == "length"
    assert result.stats.num_tokens == max_tokens
    # A step says no more than is wanted, so nothing is drafted in vain either.
    assert result.stats.num_accepted_tokens + result.stats.num_drafts == max_tokens - 1
    assert result.stats.num_drafts == -(-(max_tokens - 1) // 5)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_B02_a_batch_of_different_limits(size: int) -> None:
    requests = [([limit % 12], GenerationParams(limit, logprobs=1)) for limit in range(1, 17)]
    for limit, result in enumerate(run(ring_engine(max_batch_size=size), requests), start=1):
        assert list(result.token_ids) == [(limit + 1 + i) % 12 for i in range(limit)]
        assert (result.stats.num_tokens, result.finish_reason) == (limit, "length")
        assert [one.token_id for one in result.logprobs or ()] == list(result.token_ids)


def test_B02_nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ring_engine()

    def forward(*_: object) -> None:
        raise AssertionError("no model step is needed")

    monkeypatch.setattr(TargetModel, "forward", forward)
    result = engine.generate([2], GenerationParams(0))
    assert (result.token_ids, result.text, result.finish_reason) == ((), "", "length")
    assert result.stats.mean_acceptance_length is None
    with pytest.raises(BadInput, match="max_tokens is -1"):
        GenerationParams(-1)


@lru_cache
def short_context(arch: str = "llama") -> TargetModel:
    return tiny(arch, max_length=64)


@pytest.mark.parametrize("kind", KINDS)
def test_B07_the_context_is_used_to_its_last_position(kind: str) -> None:
    target = short_context()
    prompts = [prompt * 64 for prompt in random_prompts(24, 8, longest=1, seed=1)]
    prompts = [
        [(token + place * place) % 8 for place, token in enumerate(prompt[:length])]
        for length, prompt in enumerate(prompts, start=40)
    ]
    requests = [(prompt, GenerationParams(100)) for prompt in prompts]
    plain = run(Engine(target, max_batch_size=1), requests)
    heads = random_heads(target, kind)
    for policy in (StaticPolicy(FULL), RandomPolicy([ROOT, chain(4), FULL])):
        for size in (1, 5):
            results = run(Engine(target, heads, policy, max_batch_size=size), requests)
            assert ids_of(results) == ids_of(plain)
            for prompt, result in zip(prompts, results, strict=True):
                assert len(prompt) + len(result.token_ids) == 64
                assert result.finish_reason == "length"


def test_B07_the_last_tokens_are_the_models_own_and_the_next_request_works() -> None:
    target, heads = short_context(), random_heads(short_context(), "hydra")
    engine = Engine(target, heads, StaticPolicy(FULL))
    model = tiny_model(max_length=64)
    for prompt in ([1, 2] * 25, [4], [7, 0] * 31):
        expected = slow_ids(model, prompt, Sampling(), 64 - len(prompt))
        assert engine.generate(prompt).token_ids == expected


def test_B08_a_prompt_that_fills_the_context() -> None:
    engine = Engine(short_context(), random_heads(short_context(), "medusa"), StaticPolicy(FULL))
    for length in (64, 65, 500):
        with pytest.raises(BadInput, match=rf"has {length} tokens .* context 64"):
            engine.generate([1] * length, GenerationParams(5))
        with pytest.raises(BadInput, match="64"):
            engine.stream([1] * length)
    assert engine.num_waiting == 0
    for params in (None, GenerationParams(5)):
        result = engine.generate([1] * 63, params)
        assert (len(result.token_ids), result.finish_reason) == (1, "length")


def test_B09_speculation_does_not_change_the_default_limit() -> None:
    heads = random_heads(short_context(), "medusa")
    for length in (63, 62, 54):
        plain = Engine(short_context()).generate([1] * length)
        drafted = Engine(short_context(), heads, StaticPolicy(FULL)).generate([1] * length)
        assert plain.token_ids == drafted.token_ids
        assert len(plain.token_ids) == 64 - length


@pytest.mark.parametrize(
    "prompt",
    [5, None, [True], [1.0], b"ab", [[1, 2]], torch.tensor([1, 2]), [None]],
    ids=repr,
)
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_B10_what_is_no_prompt_is_named(prompt: object, has_tokenizer: bool) -> None:
    engine = Engine(script("ab") if has_tokenizer else ring())
    kind = type(prompt).__name__
    with pytest.raises(BadInput, match=f"nor messages, but a {kind}; give one of them"):
        engine.generate(prompt)  # type: ignore[arg-type]


def test_B10_ids_may_be_whole_numbers_of_any_kind() -> None:
    engine, params = Engine(ring()), GenerationParams(3)
    for prompt in (np.array([1, 2]), (1, np.int32(2)), range(1, 3)):
        assert engine.generate(prompt, params).token_ids == (3, 4, 5)  # type: ignore[arg-type]


def test_B10_nothing_to_go_on() -> None:
    target = script("ab")
    engine = Engine(target)
    for prompt in ("", "  \n", []):
        with pytest.raises(BadInput, match="the prompt is empty"):
            engine.generate(prompt)
    with pytest.raises(BadInput, match="the prompt is empty"):
        engine.generate_many(["a", ""])
    with pytest.raises(BadInput, match="no chat template"):
        engine.generate([Message("user", "")])
    for mixed in ([1, "a"], [""]):
        with pytest.raises(BadInput, match="neither text, nor token ids, nor messages"):
            engine.generate(mixed)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="no tokenizer"):
        Engine(ring()).generate("text")
    for odd in (-1, 258):
        with pytest.raises(BadInput, match=f"token id {odd} is outside the vocabulary of 258"):
            engine.generate([odd])
    assert engine.num_waiting == 0
    assert engine.generate("a").text == "b"


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_B11_a_prompt_of_one_token(arch: str) -> None:
    target, model = tiny(arch), tiny_model(arch)
    engine = Engine(target, random_heads(target, "hydra++"), StaticPolicy(FULL))
    for prompt in ([0], [7], [7, 7], [1, 2, 3]):
        result = engine.generate(prompt, GenerationParams(20))
        assert result.token_ids == slow_ids(model, prompt, Sampling(), 20)


def test_B11_a_prompt_of_the_beginning_or_the_end_alone() -> None:
    """An end in the prompt ends nothing."""
    model, ends = tiny_model(), {"bos_token_id": 6, "eos_token_id": 5}
    target = TargetModel.from_transformers(tiny_model(**ends))  # type: ignore[arg-type]
    assert target.eos_ids == (5,)
    engine = Engine(target, random_heads(tiny(), "medusa"), StaticPolicy(FULL))
    for prompt in ([6], [5], [5, 5, 6]):
        expected = slow_ids(model, prompt, Sampling(), 20)
        if 5 in expected:
            expected = expected[: expected.index(5) + 1]
        assert engine.generate(prompt, GenerationParams(20)).token_ids == expected


def with_eos(model_eos: int | list[int] | None, generation_eos: int | list[int] | None) -> Engine:
    model = tiny_model(eos_token_id=model_eos)
    model.generation_config = GenerationConfig(eos_token_id=generation_eos)
    target = TargetModel.from_transformers(model)
    return Engine(target, random_heads(target, "medusa"), StaticPolicy(FULL))


def test_B12_no_end_of_sequence_anywhere() -> None:
    engine = with_eos(None, None)
    assert engine.target.eos_ids == ()
    result = engine.generate([1, 2], GenerationParams(50))
    assert (len(result.token_ids), result.finish_reason) == (50, "length")


def test_B13_several_ends_and_the_generation_config_wins() -> None:
    plain = with_eos(None, None).generate([1, 2], GenerationParams(60)).token_ids

    def until(*ends: int) -> tuple[int, ...]:
        return plain[: min(plain.index(end) for end in ends if end in plain) + 1]

    one, two, three = list(dict.fromkeys(plain))[-3:]
    params = GenerationParams(60)
    assert with_eos(one, [two, three]).generate([1, 2], params).token_ids == until(two, three)
    assert with_eos([one, two], None).generate([1, 2], params).token_ids == until(one, two)
    assert with_eos(two, three).generate([1, 2], params).token_ids == until(three)
    more = GenerationParams(60, stop_token_ids=(one,))
    assert with_eos(two, three).generate([1, 2], more).token_ids == until(three, one)


def test_B18_trees_and_heads_that_do_not_fit() -> None:
    heads = new_heads(tiny(), "medusa", num_draft_heads=2)
    with pytest.raises(TreeError, match="the tree is 4 deep but there are 2 draft heads"):
        Engine(tiny(), heads, StaticPolicy(chain(4)))
    with pytest.raises(TreeError, match="the tree is 3 deep but there are 2 draft heads"):
        Engine(tiny(), heads, RandomPolicy([ROOT, chain(3), chain(1)]))
    with pytest.raises(TreeError, match=r"uses rank 8 but the heads' vocabulary has 8 tokens"):
        Engine(tiny(), heads, StaticPolicy(full(9, 1)))
    with pytest.raises(BadInput, match="needs draft heads"):
        Engine(tiny(), None, StaticPolicy(chain(1)))
    for paths, words in (
        ([[0], [0, 1, 2]], r"path \[0, 1, 2\] has no parent"),
        ([[0], [1], [0]], r"path \[0\] stands twice"),
    ):
        with pytest.raises(TreeError, match=words):
            Tree.from_paths(paths)
    assert Tree.from_paths([(2, 1), (0,), (2,)]) == Tree.from_paths([(0,), (2,), (2, 1)])
    params = GenerationParams(20)
    plain = Engine(tiny()).generate([1], params)
    four = Engine(tiny(), new_heads(tiny(), "medusa"), StaticPolicy(full(2, 2)))
    assert four.generate([1], params).token_ids == plain.token_ids
    for tree in (ROOT, chain(1), Tree.from_paths([])):
        assert Engine(tiny(), heads, StaticPolicy(tree)).generate([1], params)[2] == plain[2]
    assert torch.equal(heads.block_weight, torch.zeros_like(heads.block_weight))
    assert Engine(tiny(), heads, StaticPolicy(ROOT)).heads is None
