"""What the target's own distribution says of how predictable the text is right now.

Knows: logits behind committed text. Does not know: policies, trees, sampling.

Dimension key: B batch · N ids of a row · V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch

_NEVER = -1e4
"""Its exponential is 0, and unlike that of -inf it stays 0 times the number."""


class RootSignals(NamedTuple):
    """Of the distribution that a root came from, at temperature 1; not a number if not asked."""

    probability: float = math.nan
    """Of the likeliest token"""
    entropy: float = math.nan
    """In nats"""


def root_signals(logits: torch.Tensor) -> torch.Tensor:
    """Top-1 probability and entropy in nats, `[B, 2]` float32, of softmax(logits `[B, V]`)."""
    return torch.stack(_root_signals(logits), -1)


def _root_signals(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both of them, `[B]` each.

    With x the logits less their largest, Z the sum of e^x and p = e^x / Z, the largest p is 1 / Z
    and the entropy is log Z - the sum of p x: one exponential of each logit and no logarithm, for
    this is paid in every step.
    """
    numbers = logits.float()
    below = (numbers - numbers.amax(-1, keepdim=True)).clamp_(min=_NEVER)
    weights = below.exp()
    total = weights.sum(-1)
    entropy = total.log() - weights.mul_(below).sum(-1) / total
    return 1 / total, entropy.clamp_(min=0.0)


def copy_to_host(
    tables: Sequence[torch.Tensor],  # each [B, N] int64
    logits: torch.Tensor | None,  # [B, V]
) -> tuple[list[list[int]], list[RootSignals]]:
    """Rows of all tables side by side, and the root signals of logits if there are any.

    It is one copy from the device.
    """
    if tables[0].device.type != "cpu":
        host = packed(torch.cat([*tables], 1), logits).cpu()
        return unpacked(host, logits is not None)
    rows = [
        list(chain.from_iterable(parts))
        for parts in zip(*(table.tolist() for table in tables), strict=True)
    ]
    if logits is None:
        return rows, [RootSignals()] * len(rows)
    probabilities, entropies = (one.tolist() for one in _root_signals(logits))
    return rows, list(map(RootSignals, probabilities, entropies))


def packed(ids: torch.Tensor, logits: torch.Tensor | None) -> torch.Tensor:
    """All that is to be copied, `[B, N]` or `[B, N + 2]` int64."""
    if logits is None:
        return ids
    # Floats go along as their bits: no second wait, and no rounding.
    return torch.cat([ids, root_signals(logits).view(torch.int32)], 1)


def unpacked(host: torch.Tensor, has_signals: bool) -> tuple[list[list[int]], list[RootSignals]]:
    """What was packed, from its copy on the host."""
    if not has_signals:
        return host.tolist(), [RootSignals()] * host.shape[0]
    signals = host[:, -2:].int().view(torch.float32).tolist()
    return host[:, :-2].tolist(), [RootSignals(*row) for row in signals]
