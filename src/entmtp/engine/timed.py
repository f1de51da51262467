"""Functions of tensors, and the time that is spent in them. Knows: the host's clock."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

import torch

_T = TypeVar("_T")


class Timed:
    """Makes functions that count their time here, all in one sum."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Callable[[torch.Tensor], _T]) -> Callable[[torch.Tensor], _T]:
        def timed(argument: torch.Tensor) -> _T:
            started = perf_counter()
            result = function(argument)
            self.seconds += perf_counter() - started
            return result

        return timed
