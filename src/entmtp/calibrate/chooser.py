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
    reach: tuple[float, ...]
    """Of each depth: chance that any node of the wide tree is on the true path, if one above is"""
    sizes: tuple[int, ...]
    """Nodes, the root included, that it pays to choose from; ascending from 1"""
    tokens_per_second: float
    """λ to begin with: what it reached where it was fitted; 0 if it was not tried"""


@dataclass(frozen=True)
class Stops:
    """Draft level d + 1 while what is known behind level d is at least `thresholds[d]`.

    Behind level 0 that is p0.
    """

    thresholds: tuple[float, ...]
    tokens_per_second: float
    """λ to begin with: what it reached where it was fitted"""


@dataclass(frozen=True)
class StagedAccept:
    """Expected acceptance anew behind each level, from gD, and when to stop drafting."""

    stages: tuple[ExpectedAccept, ...]
    """Behind 0, 1, … levels: of each tree of the bank, deeper ones too"""
    stops: Stops
    """On p0, g1, g2, …"""


@dataclass(frozen=True)
class StagedNodes:
    """Node values, and when to stop drafting a tree made for the step."""

    values: NodeValues
    stops: Stops
    """On p0, and then on the sum of what the nodes of the last level are worth"""
