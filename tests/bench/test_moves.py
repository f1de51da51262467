"""How far scores must move: no honest move is called larger than it is, and a large one is seen."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.bench.moves import least_move
from entmtp.decode import Sampling
from entmtp.decode.filters import make_warper

VOCAB = 12
CPU = torch.device("cpu")
samplings = st.builds(
    Sampling,
    temperature=st.just(1.0),
    top_k=st.sampled_from([0, 1, 2, 5, 40]),
    top_p=st.sampled_from([0.1, 0.6, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5]),
)


def drawn(scores: torch.Tensor, noise: torch.Tensor, sampling: Sampling) -> int:
    return int((make_warper([sampling], CPU)(scores[None, None])[0, 0] + noise).argmax())


@given(samplings, st.integers(0, 10_000), st.sampled_from([0.01, 0.1, 0.5]))
@settings(max_examples=150, deadline=None)
def test_what_a_move_makes_win_needs_no_larger_one(
    sampling: Sampling, seed: int, move: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores, noise = (torch.randn(VOCAB, generator=generator) for _ in range(2))
    assert least_move(scores, noise, drawn(scores, noise, sampling), sampling) == 0.0
    for _ in range(8):
        by = torch.rand(VOCAB, generator=generator).mul(2).sub(1).mul(move)
        winner = drawn(scores + by, noise, sampling)
        assert least_move(scores, noise, winner, sampling) <= move + 1e-3


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(1.0), 1.5),  # it rises by half of the gap, the other falls by half
        (Sampling(1.0, top_k=3), 1.5),
        (Sampling(1.0, top_k=1), 1.5),
        (Sampling(1.0, min_p=0.9), (3 + math.log(0.9)) / 2),
        (Sampling(1.0, top_p=0.5), 1.5),
    ],
)
def test_the_second_of_two(sampling: Sampling, expected: float) -> None:
    scores, noise = torch.tensor([4.0, 1.0, -30.0]), torch.zeros(3)
    if sampling.min_p:
        noise = torch.tensor([0.0, 9.0, 0.0])  # it would win, if only it were kept
    assert least_move(scores, noise, 1, sampling) == pytest.approx(expected, abs=1e-3)


def test_what_is_ruled_out_never_wins() -> None:
    scores = torch.tensor([1.0, -torch.inf, 0.5])
    assert least_move(scores, torch.zeros(3), 1, Sampling(1.0, top_k=2)) == math.inf
