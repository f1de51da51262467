"""Whole numbers of Python's as tensors. Knows: tables of numbers, a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def int_tensor(
    table: Sequence[int] | Sequence[Sequence[int]], device: torch.device
) -> torch.Tensor:
    """Numbers, or rows of them that are equally long, as int64.

    In half of the time that `torch.tensor` takes in the midst of a step: most of its tables are a
    handful of numbers.
    """
    numbers = torch.from_numpy(np.array(table, dtype=np.int64))
    return numbers if device.type == "cpu" else numbers.to(device)
