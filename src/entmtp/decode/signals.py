"""What the target's own distribution says of how predictable the text is right now.

Knows: logits behind committed text. Does not know: policies, trees, sampling.

Dimension key: B batch · N ids of a row · V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch


class RootSignals(NamedTuple):
    """Of the distribution that a root came from, at temperature 1; not a number if not asked."""

    probability: float = math.nan
    """Of the likeliest token"""
    entropy: float = math.nan
    """In nats"""


def root_signals(logits: torch.Tensor) -> torch.Tensor:
    """Top-1 probability and entropy in nats, `[B, 2]` float32, of softmax(logits `[B, V]`)."""
    p = torch.softmax(logits.float(), -1)
    return torch.stack([p.amax(-1), torch.special.entr(p).sum(-1)], -1)


def copy_to_host(
    ids: torch.Tensor,  # [B, N] int64
    logits: torch.Tensor | None,  # [B, V]
) -> tuple[list[list[int]], list[RootSignals]]:
    """Ids, and the root signals of logits if there are any, in one copy from the device."""
    if logits is None:
        return ids.tolist(), [RootSignals()] * ids.shape[0]
    # Floats go along as their bits: no second wait, and no rounding.
    bits = root_signals(logits).view(torch.int32)
    host = torch.cat([ids, bits], 1).cpu()
    signals = host[:, -2:].int().view(torch.float32).tolist()
    return host[:, :-2].tolist(), [RootSignals(*row) for row in signals]
