"""What a policy needs to know, fitted on a trace: numbers and lists of numbers only.

Knows: tables and how to read them. Does not know: how they were fitted, traces, models.

Scores are those of `scores.py`; larger means more predictable. Trees are places in a bank, which
is ordered by ascending size.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ladder:
    """EntMTP-l: the tree whose place is how many thresholds the score reaches."""

    score: str
    thresholds: tuple[float, ...]
    """One less than trees, strictly rising"""


@dataclass(frozen=True)
class Hysteresis:
    """EntMTP-tau: from small to big above `tau_on`, back at `tau_off` or below.

    Every sequence begins small.
    """

    score: str
    small: int
    big: int
    tau_on: float
    tau_off: float
    """At most `tau_on`"""


@dataclass(frozen=True)
class ExpectedAccept:
    """Expected accepted drafts of each tree by bins of a score."""

    score: str
    edges: tuple[float, ...]
    """Borders of the bins, strictly rising; a score at a border is in the bin above"""
    levels: tuple[tuple[float, ...], ...]
    """Of each tree: one number a bin, never falling"""
    tokens_per_second: float
    """λ to begin with: what it reached where it was fitted"""


@dataclass(frozen=True)
class NodeValues:
    """Chance that a node is on the true path if its parent is, by depth and log-probability."""

    edges: tuple[tuple[float, ...], ...]
    """Of each depth from 1: borders of bins of the log-probability, strictly rising"""
    levels: tuple[tuple[float, ...], ...]
    """Of each depth: one chance a bin, never falling, at most 1"""
    tokens_per_second: float
    """λ to begin with: what it reached where it was fitted; 0 if it was not tried"""
