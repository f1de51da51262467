"""How likely drafts are to be accepted: monotone tables, fitted elsewhere.

Knows: numbers. Does not know: trees, who fitted them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from entmtp.errors import BadInput


@dataclass(frozen=True)
class StepFunction:
    """A function of one number that never falls: `levels[i]` between `edges[i - 1]` and `edges[i]`.

    On an edge it has the value behind it.
    """

    edges: tuple[float, ...]
    """Strictly ascending; none makes a constant"""
    levels: tuple[float, ...]
    """One more than edges, from 0 up, never falling"""

    def __post_init__(self) -> None:
        if len(self.levels) != len(self.edges) + 1:
            raise BadInput(
                f"a step function has {len(self.edges)} edges and {len(self.levels)} levels; give"
                " one level more than edges"
            )
        if not all(low < high for low, high in pairwise(self.edges)):
            raise BadInput("the edges of a step function must ascend strictly")
        if not self.levels[0] >= 0 or not all(a <= b for a, b in pairwise(self.levels)):
            raise BadInput("the levels of a step function must be 0 or more and never fall")

    def __call__(self, x: float) -> float:
        return self.levels[bisect_right(self.edges, x)]

    @classmethod
    def constant(cls, level: float) -> StepFunction:
        return cls((), (level,))


class Columns:
    """Several step functions of the same number, looked up at once."""

    def __init__(self, functions: Sequence[StepFunction]) -> None:
        self._edges = sorted({edge for function in functions for edge in function.edges})
        below = float("-inf")
        self._levels = [tuple(function(x) for function in functions) for x in (below, *self._edges)]

    def __call__(self, x: float) -> tuple[float, ...]:
        """Of each function, its value."""
        return self._levels[bisect_right(self._edges, x)]


def identity_by_log_prob(num_levels: int = 24) -> StepFunction:
    """A head's own word taken for it: the acceptance of a log-probability is its exponential.

    Where nothing was calibrated. Halves of a nat wide, with the value in the middle.
    """
    edges = [-(num_levels - 1 - place) / 2 for place in range(num_levels)]
    middle = [2.0 ** (1.4427 * (edge - 0.25)) for edge in edges]
    return StepFunction(tuple(edges), (*middle, 1.0))


def check_depths(name: str, tables: Sequence[object], depth: int) -> None:
    """Refuse tables that do not reach as deep as the trees.

    Raises:
        BadInput: there are fewer than levels.
    """
    if len(tables) < depth:
        raise BadInput(
            f"{name} has {len(tables)} entries and the trees {depth} levels; give one each"
        )
