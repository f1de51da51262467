"""Cases L07, L09, L10, L13 and B13: penalties, log-probabilities, seeds and ends in long blocks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

import pytest
import torch

from draft_heads import KINDS, ToldHeads, exact_heads, random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams, Result
from entmtp.errors import BadInput
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import chain, full
from fixtures import BOS, EOS, markov, ring, ring_order, script, script_order, tiny
from markov_walk import EIGHT_ROW, rolled
from reference import ids_of, run

A = 2
"""Followed by itself, mostly."""


def self_loop(chance: float) -> torch.Tensor:
    """Transitions `[5, 5]`: every token is followed by itself with `chance`, else by another."""
    other = (1 - chance) / 4
    return torch.full((5, 5), other) + (chance - other) * torch.eye(5) + torch.arange(5) * 1e-4


PENALTIES = {
    "repetition 1.5": Sampling(repetition_penalty=1.5),
    "frequency 2": Sampling(frequency_penalty=2.0),
    "frequency -2": Sampling(frequency_penalty=-2.0),
    "presence 2": Sampling(presence_penalty=2.0),
    "presence -2": Sampling(presence_penalty=-2.0),
    "bias": Sampling(logit_bias=((A, -3.0), (4, 1.0))),
    "word": Sampling(banned_ids=((A, A, A), (3, 3))),
}


SHARP = {"repetition 1.5": 0.9, "presence 2": 0.9}
"""What is too likely for a penalty that does not grow."""


def by_hand(target: TargetModel, sampling: Sampling, num_tokens: int) -> list[int]:
    """Greedy text of a MARKOV model with penalties, one token after the other."""
    states = target.embedding_weight.float()
    said = [A]
    norm = states.shape[1] ** 0.5  # of RMS norm on a unit vector
    for _ in range(num_tokens):
        scores = target.logits(states[said[-1]] * norm).tolist()
        for token, bias in sampling.logit_bias:
            scores[token] += bias
        for token in set(said):
            factor = sampling.repetition_penalty
            scores[token] *= factor if scores[token] < 0 else 1 / factor
        for token, count in Counter(said[1:]).items():
            scores[token] -= sampling.frequency_penalty * count + sampling.presence_penalty
        for *beginning, last in sampling.banned_ids:
            if said[-len(beginning) :] == beginning:
                scores[last] = float("-inf")
        said.append(max(range(len(scores)), key=scores.__getitem__))
    return said[1:]


@pytest.mark.parametrize("chance", [0.9, 0.3])
@pytest.mark.parametrize("name", PENALTIES)
def test_L07_penalties_count_tokens_of_the_same_block(name: str, chance: float) -> None:
    target, params = markov(self_loop(chance)), GenerationParams(40, PENALTIES[name])
    plain = Engine(target).generate([A], params).token_ids
    assert list(plain) == by_hand(target, PENALTIES[name], 40)
    # A penalty has an effect, unless it is a reward.
    assert (set(plain) == {A}) is (name.endswith("-2") or SHARP.get(name, 0) == chance)
    stubborn = ToldHeads(target, lambda position, path: A)
    knowing = ToldHeads(
        target, lambda position, path: plain[min(39, position - 1 + len(path))] if path else A
    )
    for heads in (stubborn, knowing):
        result = Engine(target, heads, StaticPolicy(chain(4))).generate([A], params)
        assert result.token_ids == plain
    # Heads that know the text were believed: whole blocks with penalties inside.
    assert result.stats.mean_acceptance_length == pytest.approx(39 / 8)
    for kind in KINDS:
        heads = random_heads(target, kind)
        engine = Engine(target, heads, StaticPolicy(full(5, 2)))
        assert engine.generate([A], params).token_ids == plain


LOG_P = rolled(EIGHT_ROW).log()


def check_logprobs(result: Result, prompt: int, most: int) -> None:
    """Against the transitions, one for each token and in their order."""
    assert result.logprobs is not None
    assert [one.token_id for one in result.logprobs] == list(result.token_ids)
    before = [prompt, *result.token_ids[:-1]]
    for token, one in zip(before, result.logprobs, strict=True):
        row = LOG_P[token]
        assert one.logprob == pytest.approx(float(row[one.token_id]), abs=1e-4)
        expected = row.sort(descending=True, stable=True)
        assert [token_id for token_id, _ in one.top] == expected.indices[:most].tolist()
        assert [value for _, value in one.top] == pytest.approx(
            expected.values[:most].tolist(), abs=1e-4
        )


@pytest.mark.parametrize("depth", range(5))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_L09_logprobs_of_every_token_and_no_other(temperature: float, depth: int) -> None:
    target = markov(rolled(EIGHT_ROW))
    sampling = Sampling(temperature, seed=4, frequency_penalty=0.5, top_p=0.9)
    plain_params = GenerationParams(33, sampling)
    params = GenerationParams(33, sampling, logprobs=3)
    said = Engine(target).generate([1], plain_params)
    assert said.logprobs is None
    # Drafts that are right but for every fifth: blocks of all lengths.
    heads = ToldHeads(
        target,
        lambda at, path: (said.token_ids[min(32, at - 1 + len(path))] + (at % 5 == 0)) % 8,
    )
    engine = Engine(target, heads, StaticPolicy(chain(depth))) if depth else Engine(target)
    events = list(engine.stream([1], params))
    last = events[-1]
    assert isinstance(last, FinishEvent)
    assert last.result.token_ids == said.token_ids
    check_logprobs(last.result, 1, 3)
    streamed = [e.logprobs for e in events if not isinstance(e, FinishEvent)]
    assert tuple(one for part in streamed for one in part or ()) == last.result.logprobs
    if depth:
        assert {len(part or ()) for part in streamed} >= {1, depth + 1}
    typical = Engine(target, heads if depth else None, engine.policy, acceptance="typical")
    check_logprobs(typical.generate([1], params), 1, 3)


def test_L09_nothing_behind_the_end_and_nothing_for_the_neighbours() -> None:
    heads = exact_heads(ring(), ring_order(12), "medusa")
    engine = Engine(ring(), heads, StaticPolicy(chain(4)))
    asked = [
        GenerationParams(30, stop_token_ids=(7,), logprobs=0),
        GenerationParams(3),
        GenerationParams(9, logprobs=20),
        GenerationParams(0, logprobs=2),
    ]
    results = run(engine, [([2], params) for params in asked])
    sizes = [None if one.logprobs is None else len(one.logprobs) for one in results]
    assert sizes == [5, None, 9, 0]
    assert results[0].logprobs is not None
    assert results[2].logprobs is not None
    assert {len(one.top) for one in results[0].logprobs} == {0}
    assert {len(one.top) for one in results[2].logprobs} == {12}  # all there are
    json.dumps([one.logprobs for one in results], allow_nan=False)


def test_L09_a_wrong_count_is_named() -> None:
    for odd in (-1, 21, 2.0, True):
        with pytest.raises(BadInput, match=r"logprobs is .*; give a count from 0 to 20"):
            GenerationParams(logprobs=odd)  # type: ignore[arg-type]


Say = Callable[[Sampling], Result]


def hot() -> Say:
    transitions = rolled(EIGHT_ROW)
    target = markov(transitions)
    engine = Engine(target, random_heads(target, "hydra"), StaticPolicy(full(3, 2)))
    return lambda sampling: engine.generate([1], GenerationParams(24, sampling))


def test_L10_without_a_seed_calls_differ_and_can_be_repeated() -> None:
    say = hot()
    results = [say(Sampling(2.0)) for _ in range(4)]
    assert len(set(ids_of(results))) == 4
    for result in results:
        again = say(Sampling(2.0, seed=result.seed))
        assert (again.token_ids, again.seed) == (result.token_ids, result.seed)
    assert len({say(Sampling()).token_ids for _ in range(3)}) == 1


def test_L10_samples_of_a_request_are_a_set_of_their_own() -> None:
    target = tiny()
    heads = random_heads(target, "hydra")
    drafted = Engine(target, heads, StaticPolicy(full(3, 2)), max_batch_size=3)
    params = GenerationParams(20, Sampling(1.5, seed=6))
    results = drafted.generate_samples([1, 2], params, 5)
    assert [result.sample_index for result in results] == list(range(5))
    assert {result.seed for result in results} == {6}
    assert len(set(ids_of(results))) == 5
    # Whatever the company; the first is what the seed gives alone; more are more of the same.
    assert ids_of(Engine(target, max_batch_size=1).generate_samples([1, 2], params, 7))[:5] == (
        ids_of(results)
    )
    assert drafted.generate([1, 2], params).token_ids == results[0].token_ids
    other = drafted.generate_samples([1, 2], GenerationParams(20, Sampling(1.5)), 3)
    assert len({result.seed for result in other}) == 1
    assert len(set(ids_of(other))) == 3
    for odd in (0, -1, 10**6, 1.0):
        with pytest.raises(BadInput, match=r"n is .*; give a count from 1 to 128"):
            drafted.generate_samples([1, 2], params, odd)  # type: ignore[arg-type]
    assert drafted.num_waiting == 0


def test_B13_ends_that_are_ignored_and_ends_that_come_too_early() -> None:
    text = "abcd"
    target = script(text)
    heads = exact_heads(target, script_order(text), "medusa")
    end_again = [*text.encode(), *[EOS] * 4]
    for depth in range(5):
        engine = Engine(target, heads, StaticPolicy(chain(depth)) if depth else None)

        def say(depth: int = depth, engine: Engine = engine, **asked: object) -> Result:
            return engine.generate([BOS], GenerationParams(8, **asked))  # type: ignore[arg-type]

        assert say().text == "abcd"
        ignored = say(ignore_eos=True)
        assert (list(ignored.token_ids), ignored.finish_reason) == (end_again, "length")
        assert ignored.text == "abcd"
        # The user's own ends still are ends.
        stopped = say(ignore_eos=True, stop_token_ids=(ord("c"),))
        assert (stopped.token_ids, stopped.finish_reason) == (tuple(b"abc"), "stop")
        # Ruled out before: something else is said instead, and then it may come.
        early = say(min_tokens=6)
        assert EOS not in early.token_ids[:6]
        assert len(early.token_ids) > 6
        assert say(min_tokens=6, stop=("b",)).text[:4] == "abcd"
        assert say(min_tokens=1, stop=("b",)).text == "a"
        assert say(min_tokens=2, stop=("b",)).text == "abcd"


def test_B13_words_are_banned_as_the_tokenizer_spells_them() -> None:
    text = "ab cd"
    target = script(text)
    heads = exact_heads(target, script_order(text), "medusa")
    for depth in range(4):
        engine = Engine(target, heads, StaticPolicy(chain(depth)) if depth else None)
        for word in ("cd", " cd", "b c"):
            said = engine.generate([BOS], GenerationParams(12, banned=(word,))).text
            assert word not in said
            assert said.startswith(text[: text.index(word) + len(word) - 1])
        assert engine.generate([BOS], GenerationParams(12, banned=("dc", "xyz"))).text == text
    with pytest.raises(BadInput, match="banned holds an empty text"):
        GenerationParams(banned=("a", ""))
    with pytest.raises(BadInput, match="banned is the string 'ab'"):
        GenerationParams(banned="ab")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="banned words need a tokenizer"):
        Engine(ring()).generate([1], GenerationParams(banned=("a",)))


def test_S09_what_this_model_has_not_is_named() -> None:
    engine = Engine(ring())
    for params in (
        GenerationParams(stop_token_ids=(12,)),
        GenerationParams(sampling=Sampling(logit_bias=((12, 1.0),))),
        GenerationParams(sampling=Sampling(banned_ids=((3, 12),))),
    ):
        with pytest.raises(BadInput, match="is 12; give token ids from 0 to 11"):
            engine.add([1], params)
    with pytest.raises(BadInput, match="min_tokens is 9 and max_tokens 8"):
        GenerationParams(8, min_tokens=9)
    with pytest.raises(BadInput, match=r"min_tokens is 1\.5"):
        GenerationParams(min_tokens=1.5)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="stop_token_ids is 3; give several token ids"):
        GenerationParams(stop_token_ids=3)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="stop holds 3"):
        GenerationParams(stop=(3,))  # type: ignore[arg-type]
    assert engine.num_waiting == 0
