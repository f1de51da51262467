"""Randomness keyed by (seed, output position, token id): the same on every device, in any company.

Knows: integers. Does not know: logits, trees, sequences. A draw is the largest of
`log p + Gumbel noise`; since the noise depends on nothing but the key, speculative decoding
draws exactly the token that plain decoding draws (DESIGN D3, METHOD §5.4).
"""

from __future__ import annotations

import torch

_GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as signed 64-bit
_MIX_1 = -0x40A7B892E31B1A47  # SplitMix64's multipliers, as signed 64-bit
_MIX_2 = -0x6B2FB644ECCEEE15
_NUM_BITS = 40


def _mix(x: torch.Tensor) -> torch.Tensor:
    """SplitMix64's finaliser on int64 (products wrap); a shift must drop the sign's copies."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _MIX_1
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _MIX_2
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def sample_seed(seed: int, index: int) -> int:
    """The seed, 0 to 2^63 - 1, of the sample `index` of a request; the first has the request's."""
    if index == 0:
        return seed
    mixed = _mix(_mix(torch.tensor(seed)) + torch.tensor(index) * _GOLDEN)
    return int(mixed) & (2**63 - 1)


def gumbel_noise(
    seeds: torch.Tensor,  # [B] int64
    positions: torch.Tensor,  # [B] int64: absolute position of the token to be drawn
    vocab_size: int,
) -> torch.Tensor:
    """Standard Gumbel noise `[B, V]`, float32.

    40 bits a token: the uniform is formed so that its small values, which decide a race, keep
    full float32 precision.
    """
    key = _mix(_mix(seeds + _GOLDEN) + positions * _GOLDEN)
    ids = torch.arange(vocab_size, device=seeds.device)
    bits = _mix(key[:, None] + ids * _GOLDEN) & ((1 << _NUM_BITS) - 1)
    # The largest ones round up to 1, whose noise would be -inf, and lose even to a token ruled out.
    uniform = ((bits.float() + 0.5) * 2.0**-_NUM_BITS).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-uniform))
