"""How long a step takes: medians of measured sizes, and what follows of those in between.

Knows: times by rows, levels and context. Does not know: models, who measured, acceptance.

Times are those of a step behind others with as many rows. One behind a step with another number of
rows, a *switch*, takes longer by `switch_seconds`: a runtime has a copy of its own for each number,
and what the last step read is not what this one needs. One of a policy that looks at something
takes longer by what the look costs (`look_seconds`); plain decoding and static trees look at
nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from entmtp.errors import BadInput
from entmtp.trees import Tree


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
    """Of a draft of 0, 1, … K levels along one path; the first is 0"""
    host_seconds: float
    """Of everything else"""
    width_seconds: tuple[float, ...] = ()
    """Of each of `rows`: what drafting a tree of so many nodes takes longer than one path of its
    depth; empty where it takes no longer"""
    switch_seconds: float = 0.0
    """What a step takes longer behind one that verified another number of rows"""
    root_seconds: float = 0.0
    """What any step takes longer for a policy that reads its root's signals"""
    read_seconds: float = 0.0
    """What a step that drafts takes longer for a policy that reads the draft and cuts it"""

    def __post_init__(self) -> None:
        is_right = (
            len(self.rows) == len(self.verify_seconds)
            and self.rows[:1] == (1,)
            and list(self.rows) == sorted(set(self.rows))
            and self.draft_seconds[:1] == (0.0,)
            and len(self.width_seconds) in (0, len(self.rows))
            and min(self.host_seconds, *self.verify_seconds, *self.draft_seconds) >= 0
            and min(self.width_seconds, default=0.0) >= 0
            and min(self.switch_seconds, self.root_seconds, self.read_seconds) >= 0
        )
        if not is_right:
            raise BadInput(
                "step times need as many verify_seconds as rows, rows ascending from 1,"
                " draft_seconds from 0, and nothing below 0"
            )

    def verify(self, rows: int) -> float:
        """Behind the largest measured size, its last slope goes on."""
        return self._at(rows, self.verify_seconds)

    def draft(self, rows: int, depth: int) -> float:
        """Seconds of drafting a tree of `rows` nodes, root included, `depth` deep."""
        wider = self._at(rows, self.width_seconds) if depth and self.width_seconds else 0.0
        return self.draft_seconds[depth] + wider

    def step(self, rows: int, depth: int) -> float:
        """Seconds of a whole step with a tree of `rows` nodes, root included, `depth` deep.

        It is no switch.
        """
        return self.verify(rows) + self.draft(rows, depth) + self.host_seconds

    def look_seconds(self, *, reads_root: bool, reads_draft: bool) -> float:
        """Of a step's looks. Who reads the draft pays for it only where something is drafted."""
        return self.root_seconds * reads_root + self.read_seconds * reads_draft

    def _at(self, rows: int, seconds: Sequence[float]) -> float:
        for place in range(1, len(self.rows)):
            if rows <= self.rows[place] or place == len(self.rows) - 1:
                low, high = self.rows[place - 1], self.rows[place]
                share = (rows - low) / (high - low)
                return seconds[place - 1] + share * (seconds[place] - seconds[place - 1])
        return seconds[0]


class AtContext(NamedTuple):
    """Times at one length of the committed text."""

    num_tokens: int
    times: StepTimes


Times = Sequence[AtContext]
"""Ascending by length."""


def at_any_length(times: StepTimes) -> tuple[AtContext, ...]:
    """One table for every length."""
    return (AtContext(0, times),)


class Costs:
    """Times of the sizes that a policy uses, looked up instead of computed.

    `verify[length][rows]` and `draft[length][levels]`, where `length` is a place in `Times`. What
    is drafted is the last of the trees, level by level: wide levels take longer than one path. What
    looking costs is in them: of the draft in `draft`, of the root in `host`.
    """

    def __init__(self, times: Times, trees: Sequence[Tree], *, reads_root: bool = False) -> None:
        """
        Args:
            trees: all that may be verified, and last what is drafted of them.
            reads_root: whether the policy does so in each step.

        Raises:
            BadInput: there is no table, or one does not reach as deep as the trees.
        """
        depth = max(tree.depth for tree in trees)
        most = max(tree.num_nodes for tree in trees)
        if not times:
            raise BadInput("a policy that counts time needs step times; give at least one table")
        for one in times:
            if len(one.times.draft_seconds) <= depth:
                raise BadInput(
                    f"the step times know {len(one.times.draft_seconds) - 1} draft levels and a"
                    f" tree has {depth}; measure as many"
                )
        # Where one length ends and the next begins: half way.
        lengths = [one.num_tokens for one in times]
        self._ends = [(a + b) // 2 for a, b in pairwise(lengths)]
        self.times = [one.times for one in times]
        self.verify = [[0.0, *map(one.verify, range(1, most + 1))] for one in self.times]
        levels = [trees[-1].truncate(d).num_nodes for d in range(trees[-1].depth + 1)]
        self.draft = [
            [one.draft(rows, d) + one.read_seconds * (d > 0) for d, rows in enumerate(levels)]
            for one in self.times
        ]
        self.host = [one.host_seconds + one.root_seconds * reads_root for one in self.times]
        self.switch = [one.switch_seconds for one in self.times]
        self._in_company: dict[tuple[int, int, int], Sequence[float]] = {}
        self.plain_seconds = self.times[0].step(1, 0)
        """Of a plain step, at the shortest length"""
        if not self.plain_seconds > 0:
            raise BadInput("a plain step takes no time, by the step times; measure them again")

    def of_company(self, place: int, num_sequences: int, last_rows: int = 0) -> Sequence[float]:
        """Seconds of 0, 1, 2, … rows of each of so many sequences.

        Args:
            last_rows: of each in the step before, from which any other number is a switch; 0
                before the first step, where none is.
        """
        known = self._in_company.get((place, num_sequences, last_rows))
        if known is None:
            alone, switch = self.verify[place], self.switch[place]
            known = [
                verify_time(alone, num_sequences * rows) + switch * is_switch(rows, last_rows)
                for rows in range(len(alone))
            ]
            self._in_company[place, num_sequences, last_rows] = known
        return known

    def place(self, num_tokens: int) -> int:
        """Which table is nearest to a length of committed text."""
        return bisect_left(self._ends, num_tokens)


def is_switch(rows: int, last_rows: int) -> bool:
    """Whether a step of so many rows is of another number than the one before; 0: there is none."""
    return last_rows not in (0, rows)


def verify_time(seconds: Sequence[float], rows: int) -> float:
    """Of a table by rows from 0 up; behind its end, the last slope goes on."""
    last = len(seconds) - 1
    if rows <= last:
        return seconds[rows]
    slope = seconds[last] - seconds[last - 1] if last > 1 else 0.0
    return seconds[last] + (rows - last) * slope
