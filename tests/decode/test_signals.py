"""Root signals against the definition, and their way to the host."""

from __future__ import annotations

import math

import pytest
import torch

from entmtp.decode import RootSignals, copy_to_host, packed, unpacked
from entmtp.target.root_signals import root_signals


def test_probability_and_entropy_by_hand() -> None:
    rows = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.25, 0.25, 0.25, 0.25], [0.0, 0.0, 1.0, 0.0]])
    # A token ruled out has a logit of minus infinity, and adds nothing.
    probability, entropy = root_signals(rows.log() + 3.0).unbind(1)
    assert probability.tolist() == pytest.approx([0.5, 0.25, 1.0])
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2), math.log(4), 0.0])


def test_one_copy_carries_ids_and_floats_unrounded() -> None:
    ids = torch.tensor([[3, 2**40 + 1], [0, 7]])
    logits = 5 * torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    for host_ids, signals in (
        unpacked(packed(ids, logits), True),
        copy_to_host((ids[:, :1], ids[:, 1:]), logits),
    ):
        assert host_ids == ids.tolist()
        assert [tuple(row) for row in signals] == list(map(tuple, root_signals(logits).tolist()))


def test_without_logits_there_are_none() -> None:
    host_ids, signals = copy_to_host((torch.tensor([[3, 4]]),), None)
    assert host_ids == [[3, 4]]
    assert [math.isnan(value) for value in signals[0]] == [True, True]
    assert isinstance(signals[0], RootSignals)
