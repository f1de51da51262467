"""Temperature, top-k, top-p and the draw, against `transformers`' own processors."""

from __future__ import annotations

import re
from math import inf, nan

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.decode import Sampler, Sampling
from entmtp.decode.filters import make_warper
from entmtp.decode.noise import sample_seed
from entmtp.errors import BadInput
from reference import filtered

CPU = torch.device("cpu")
FILTERS = [
    (0, 1.0),
    (1, 1.0),
    (3, 1.0),
    (200, 1.0),
    (0, 0.5),
    (0, 0.99),
    (5, 0.7),
    (50, 0.01),
    (10, 0.5),
    (20, 0.9),
]
LEAST = [0.0, 0.03, 0.5, 1.0]


def logits(rows: int, vocab_size: int = 50, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


def warped(rows: list[Sampling], scores: torch.Tensor) -> torch.Tensor:  # [B, V] -> [B, V]
    return make_warper(rows, CPU)(scores[:, None])[:, 0]


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize(("top_k", "top_p"), FILTERS)
@pytest.mark.parametrize("min_p", LEAST)
def test_filters_are_those_of_transformers(
    top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    sampling, scores = Sampling(temperature, top_k, top_p, min_p=min_p), logits(20)
    expected = filtered(torch.zeros(20, 1), scores.clone(), sampling)
    assert torch.equal(warped([sampling] * 20, scores), expected)


def test_rows_with_different_filters() -> None:
    rows = [Sampling(0.5 + 0.2 * i, *each, min_p=LEAST[i % 4]) for i, each in enumerate(FILTERS)]
    scores = logits(len(rows))
    kept = warped(rows, scores)
    for i, sampling in enumerate(rows):
        own = filtered(torch.zeros(1, 1), scores[i : i + 1].clone(), sampling)
        assert torch.equal(kept[i : i + 1], own)


some_samplings = st.builds(
    Sampling,
    st.sampled_from([0.0, 0.5, 1.0, 1.7]),
    st.sampled_from([0, 1, 2, 7, 99]),
    st.sampled_from([1.0, 0.9, 0.5, 0.1]),
    st.integers(0, 2**63 - 1),
    st.sampled_from([0.0, 0.2, 1.0]),
)


@given(st.lists(some_samplings, min_size=1, max_size=6), st.integers(0, 5), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rows_do_not_know_their_neighbours(rows: list[Sampling], seed: int, ties: bool) -> None:
    scores = logits(len(rows), 30, seed)
    if ties:
        scores = scores.round()
    positions = torch.arange(len(rows)) * 7
    together = Sampler(rows, CPU)(scores, positions)
    for i, sampling in enumerate(rows):
        alone = Sampler([sampling], CPU)(scores[i : i + 1], positions[i : i + 1])
        assert together[i] == alone[0]


def test_ties_stay_in_the_order_of_ids() -> None:
    scores = torch.zeros(1, 1000)
    scores[0, [500, 17, 3, 999]] = 5.0
    for top_k, ids in ((1, {3}), (2, {3, 17}), (3, {3, 17, 500}), (4, {3, 17, 500, 999})):
        kept = warped([Sampling(1.0, top_k=top_k)], scores)
        assert set(kept[0].isfinite().nonzero()[:, 0].tolist()) == ids
    # Four of 0.25 each, to speak of: two reach 0.4.
    scores[0, :] = -30.0
    scores[0, [500, 17, 3, 999]] = 5.0
    kept = warped([Sampling(1.0, top_p=0.4)], scores)
    assert set(kept[0].isfinite().nonzero()[:, 0].tolist()) == {3, 17}
    greedy = Sampler([Sampling()], CPU)
    assert int(greedy(scores, torch.tensor([0]))) == 3


def test_one_token_is_always_left() -> None:
    scores = torch.full((1, 10), -inf)
    scores[0, 4] = 0.0
    for sampling in (
        Sampling(1.0, top_p=1e-9),
        Sampling(0.1, top_k=3),
        Sampling(5.0, 0, 0.5, min_p=1),
    ):
        for position in range(50):
            draw = Sampler([sampling.seeded()], CPU)(scores, torch.tensor([position]))
            assert int(draw) == 4


@pytest.mark.parametrize("temperature", [1e-5, 1e-30, 1e-300, 5e-324])
def test_almost_no_temperature_is_greedy(temperature: float) -> None:
    scores = logits(20)
    draw = Sampler([Sampling(temperature, seed=3)] * 20, CPU)
    assert torch.equal(draw(scores, torch.arange(20)), scores.argmax(-1))


def test_a_great_temperature_is_a_die() -> None:
    scores = logits(1).expand(4000, -1)
    rows = [Sampling(1e9, seed=seed) for seed in range(4000)]
    draws = Sampler(rows, CPU)(scores, torch.zeros(4000, dtype=torch.long))
    assert int(torch.bincount(draws, minlength=50).min()) > 40


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"temperature": nan}, "temperature is nan"),
        ({"temperature": inf}, "temperature is inf"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"top_k": -5}, "top_k is -5"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_p": nan}, "top_p is nan"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**70}, "seed is"),
        ({"seed": 1.0}, "seed is 1.0"),
        ({"temperature": "0.5"}, "temperature is '0.5'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": nan}, "min_p is nan"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"repetition_penalty": inf}, "repetition_penalty is inf"),
        ({"presence_penalty": 10}, "presence_penalty is 10"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1"),
        ({"frequency_penalty": None}, "frequency_penalty is None"),
        ({"logit_bias": ((3, nan),)}, "logit_bias of token id 3 is nan"),
        ({"logit_bias": ((3, 101),)}, "logit_bias of token id 3 is 101"),
        ({"logit_bias": ((-1, 1.0),)}, "a token id in logit_bias is -1"),
        ({"logit_bias": (("3", 1.0),)}, "a token id in logit_bias is '3'"),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, "logit_bias names a token id twice"),
        ({"banned_ids": ((),)}, "banned_ids is ((),)"),
        ({"banned_ids": 3}, "banned_ids is 3"),
        ({"banned_ids": ((1, -4),)}, "a token id in a sequence in banned_ids is -4"),
        ({"banned_ids": (7,)}, "a sequence in banned_ids is 7"),
        ({"banned_ids": ("ab",)}, "a sequence in banned_ids is 'ab'"),
        ({"logit_bias": {3: 1.0}}, "logit_bias is {3: 1.0}; give pairs"),
        ({"logit_bias": (3, 1.0)}, "logit_bias is (3, 1.0); give pairs"),
        ({"delays": 3}, "delays is 3; give pairs"),
        ({"delays": ((1, -4),)}, "delay of token id 1 is -4"),
        ({"delays": ((0.5, 4),)}, "a token id in delays is 0.5"),
    ],
)
def test_values_out_of_range_are_named(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(BadInput, match=re.escape(named)) as caught:
        Sampling(**arguments)  # type: ignore[arg-type]
    assert "; give" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ids_outside_of_the_vocabulary_are_named() -> None:
    for sampling in (
        Sampling(logit_bias=((8, 1.0),)),
        Sampling(banned_ids=((1, 8),)),
        Sampling(delays=((8, 1),)),
    ):
        sampling.check_vocabulary(9)
        with pytest.raises(BadInput, match="is 8; give token ids from 0 to 7"):
            sampling.check_vocabulary(8)


def test_a_seed_is_drawn_where_there_is_none() -> None:
    seeds = {Sampling(1.0).seeded().seed for _ in range(20)}
    assert len(seeds) == 20
    assert all(seed is not None and 0 <= seed < 2**53 for seed in seeds)
    assert Sampling(1.0, seed=7).seeded().seed == 7
    assert Sampling().seeded().seed == 0  # nothing is drawn


def test_samples_of_a_request_have_seeds_of_their_own() -> None:
    assert [sample_seed(seed, 0) for seed in (0, 5, 2**63 - 1)] == [0, 5, 2**63 - 1]
    seeds = {sample_seed(seed, index) for seed in range(50) for index in range(50)}
    assert len(seeds) == 50 * 50
    assert all(0 <= seed < 2**63 for seed in seeds)
    # For ever: a seed of old must give the same set.
    assert sample_seed(42, 3) == 3069497704473277141
