"""What the target's own distribution says of how predictable the text is right now.

Knows: logits behind committed text. Does not know: policies, trees, sampling.

Dimension key: B batch · N ids of a row · V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

import torch

from entmtp.target.root_signals import root_signals

Signals = Callable[[torch.Tensor], torch.Tensor]
"""Logits `[B, V]` to `[B, 2]` (`target/root_signals.py`)."""


class RootSignals(NamedTuple):
    """Of the distribution that a root came from, at temperature 1; not a number if not asked."""

    probability: float = math.nan
    """Of the likeliest token"""
    entropy: float = math.nan
    """In nats"""


def copy_to_host(
    tables: Sequence[torch.Tensor],  # each [B, N] int64
    logits: torch.Tensor | None,  # [B, V]
    signals: Signals = root_signals,
) -> tuple[list[list[int]], list[RootSignals]]:
    """Rows of all tables side by side, and the root signals of logits if there are any.

    It is one copy from the device.

    Args:
        signals: how they are computed on a CPU.
    """
    if tables[0].device.type != "cpu":
        host = packed(torch.cat([*tables], 1), logits).cpu()
        return unpacked(host, logits is not None)
    rows = [
        list(chain.from_iterable(parts))
        for parts in zip(*(table.tolist() for table in tables), strict=True)
    ]
    return rows, signals_on_host(logits, len(rows), signals)


def signals_on_host(
    logits: torch.Tensor | None,  # [B, V] on a CPU
    count: int,
    signals: Signals = root_signals,
) -> list[RootSignals]:
    """Root signals of logits, or of nothing, for `count` sequences."""
    if logits is None:
        return [RootSignals()] * count
    return [RootSignals(*row) for row in signals(logits).tolist()]


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
