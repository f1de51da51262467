"""How long a step takes here: measured times, and a smooth monotone model of those in between.

Knows: times by rows, levels and context. Does not know: models, who measured, acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the parts of a step at one context length and one batch size.

    A step with a tree takes `verify(rows) + draft(depth) + host`; plain decoding is one row, no
    draft. Between measured sizes a time is interpolated, and none is shorter than that of less
    work (pool-adjacent-violators on the medians).
    """

    rows: tuple[int, ...]
    """Slots that were measured, the root included, ascending from 1"""
    verify_seconds: tuple[float, ...]
    """Of each of `rows`: the target's forward and the logits of visited nodes"""
    draft_seconds: tuple[float, ...]
    """Of a draft of 0, 1, … K levels; the first is 0"""
    host_seconds: float
    """Of everything else"""

    def verify(self, rows: int) -> float:
        """Behind the largest measured size, its last slope goes on."""
        for place in range(1, len(self.rows)):
            if rows <= self.rows[place] or place == len(self.rows) - 1:
                return self._between(place, rows)
        return self.verify_seconds[0]

    def step(self, rows: int, depth: int) -> float:
        """Seconds of a whole step with a tree of `rows` nodes, root included, `depth` deep."""
        return self.verify(rows) + self.draft_seconds[depth] + self.host_seconds

    def _between(self, place: int, rows: int) -> float:
        low, high = self.rows[place - 1], self.rows[place]
        share = (rows - low) / (high - low)
        first, second = self.verify_seconds[place - 1], self.verify_seconds[place]
        return first + share * (second - first)
