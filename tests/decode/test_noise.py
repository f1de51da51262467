"""The keyed noise: Gumbel, independent, and the same for everybody everywhere."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from entmtp.decode import noise
from entmtp.decode.noise import gumbel_noise


def at(seed: int, position: int, vocab_size: int = 5) -> torch.Tensor:
    return gumbel_noise(torch.tensor([seed]), torch.tensor([position]), vocab_size)[0]


def uniforms(values: torch.Tensor) -> torch.Tensor:
    """Gumbel noise back to what it was made of."""
    return 1 - torch.exp(-torch.exp(-values.double()))


def distance(sample: torch.Tensor) -> float:
    """Kolmogorov and Smirnov's, to the uniform distribution, times the root of the count."""
    sample = sample.flatten().sort().values
    steps = torch.arange(1, len(sample) + 1) / len(sample)
    return float((sample - steps).abs().max()) * sqrt(len(sample))


def test_constants_are_those_of_splitmix64() -> None:
    unsigned = [value % 2**64 for value in (noise._GOLDEN, noise._MIX_1, noise._MIX_2)]
    assert unsigned == [0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB]


def python_mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


@pytest.mark.parametrize("x", [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0])
def test_products_wrap_as_unsigned_integers_do(x: int) -> None:
    signed = torch.tensor([x - 2**64 if x >= 2**63 else x])
    assert int(noise._mix(signed)) % 2**64 == python_mix(x)


def test_splitmix64_itself() -> None:
    """The published generator's first outputs from seed 1234567."""
    outputs = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    state = 1234567
    for expected in outputs:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        signed = state - 2**64 if state >= 2**63 else state
        assert int(noise._mix(torch.tensor([signed]))) % 2**64 == expected


def test_a_golden_value_for_ever() -> None:
    """Texts of old seeds must not change with a release."""
    expected = torch.tensor([1.257079, 0.882125, -0.143399, 2.428299, 0.534421])
    assert torch.allclose(at(42, 7), expected, atol=1e-5)


def test_it_depends_on_the_key_alone() -> None:
    seeds, positions = torch.tensor([3, 9, 3, 2**63 - 1]), torch.tensor([0, 5, 5, 1000])
    together = gumbel_noise(seeds, positions, 300)
    for row, (seed, position) in enumerate(zip(seeds.tolist(), positions.tolist(), strict=True)):
        assert torch.equal(together[row], at(seed, position, 300))
        # A token's noise does not know how many tokens there are.
        assert torch.equal(together[row, :7], at(seed, position, 7))


@pytest.mark.parametrize("vary", ["seed", "position", "token"])
def test_it_is_uniform_along_every_key(vary: str) -> None:
    count, zero = 20_000, torch.zeros(20_000, dtype=torch.long)
    many = torch.arange(count)
    sample = {
        "seed": lambda: gumbel_noise(many, zero + 11, 1),
        "position": lambda: gumbel_noise(zero + 11, many, 1),
        "token": lambda: gumbel_noise(zero[:1] + 11, zero[:1] + 3, count),
    }[vary]()
    # Of fair noise 1 in 1,000 lies beyond 1.95.
    assert distance(uniforms(sample)) < 1.95


def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1])


def test_neighbouring_keys_are_strangers() -> None:
    many = torch.arange(20_000)
    here = uniforms(gumbel_noise(many, many * 0 + 5, 4))
    limit = 4 / sqrt(here.numel())
    for shift in (1, 2, 64, 2**20):
        assert abs(correlation(here, uniforms(gumbel_noise(many + shift, many * 0 + 5, 4)))) < limit
        there = uniforms(gumbel_noise(many, many * 0 + 5 + shift, 4))
        assert abs(correlation(here, there)) < limit
    assert abs(correlation(here[:, 0], here[:, 1])) < 4 / sqrt(len(here))
    # Seed + 1 must not be position + 1: nor any other sum of the two.
    assert not torch.equal(at(5, 6), at(6, 5))


def test_the_tails_are_there() -> None:
    sample = gumbel_noise(torch.arange(200), torch.arange(200), 10_000)
    assert torch.isfinite(sample).all()
    # Two million draws: the largest near log(2e6) = 14.5, the smallest near -log(14.5) = -2.7.
    assert 12.5 < float(sample.max()) < 20
    assert -3.0 < float(sample.min()) < -2.4
    # The winner's tail is fine-grained: its values are not all among a few.
    assert len(sample[sample > 8].unique()) > 0.98 * int((sample > 8).sum())


def test_the_largest_uniform_is_finite_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 bits that are all set round up to 1 in float32; the noise must not become -inf."""
    monkeypatch.setattr(noise, "_mix", lambda x: torch.full_like(x, -1))
    assert torch.isfinite(at(0, 0)).all()
    monkeypatch.setattr(noise, "_mix", torch.zeros_like)
    assert torch.isfinite(at(0, 0)).all()
