"""What the steps that a policy may take cost, looked up instead of computed.

Knows: step times, trees. Does not know: models, who measured, what a step brings.

A table is made the first time that it is asked for, of each length, each number of sequences and
each number of rows in the step before. From then on a decision computes and keeps nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from entmtp.errors import BadInput
from entmtp.scheduler.times import AtContext, StepTimes, Times
from entmtp.trees import Tree


class Prices:
    """Seconds of the steps of so many sequences at one length.

    What looking costs is in them: at the draft in `draft`, at the root in `host`.
    """

    def __init__(
        self, times: StepTimes, most: int, levels: Sequence[int], *, reads_root: bool
    ) -> None:
        """
        Args:
            most: rows of each sequence that are looked up.
            levels: nodes of what is drafted, the root included, behind 0, 1, 2, … levels: wide
                levels take longer than one path.
        """
        self.verify: Sequence[float] = [0.0, *map(times.verify, range(1, most + 1))]
        """Of 0, 1, 2, … rows of each sequence"""
        self.draft: Sequence[float] = [
            times.draft(rows, depth) + times.read_seconds * (depth > 0)
            for depth, rows in enumerate(levels)
        ]
        """Of 0, 1, 2, … levels"""
        self.host = times.host_seconds + times.root_seconds * reads_root
        self.switch = times.switch_seconds
        self._behind: dict[int, Sequence[float]] = {0: self.verify}

    def behind(self, last_rows: int) -> Sequence[float]:
        """`verify`, with a switch where it is one.

        Args:
            last_rows: of each sequence in the step before; 0 before the first.
        """
        known = self._behind.get(last_rows)
        if known is None:
            known = self._behind[last_rows] = [
                seconds + self.switch * is_switch(rows, last_rows)
                for rows, seconds in enumerate(self.verify)
            ]
        return known

    def step(self, rows: int, levels: int) -> float:
        """Of a step with so many rows of each sequence behind so many levels; it is no switch."""
        return verify_time(self.verify, rows) + self.draft[levels] + self.host


class PricesAtLength:
    """Prices at one length, made once for each number of sequences."""

    def __init__(
        self, at: AtContext, most: int, levels: Sequence[int], *, reads_root: bool
    ) -> None:
        self._at, self._most, self._levels, self._reads_root = at, most, levels, reads_root
        self._known: dict[int, Prices] = {}

    def of(self, num_sequences: int) -> Prices:
        known = self._known.get(num_sequences)
        if known is None:
            times = self._at.of_company(num_sequences)
            known = Prices(times, self._most, self._levels, reads_root=self._reads_root)
            self._known[num_sequences] = known
        return known

    def verify(self, num_sequences: int) -> Sequence[float]:
        """Of 0, 1, 2, … rows of each of so many sequences."""
        return self.of(num_sequences).verify


class Costs:
    """Prices of the sizes that a policy uses, `at` each length."""

    def __init__(self, times: Times, trees: Sequence[Tree], *, reads_root: bool = False) -> None:
        """
        Args:
            trees: all that may be verified, and last what is drafted of them, level by level.
            reads_root: whether the policy does so in each step.

        Raises:
            BadInput: there is no table, or one does not reach as deep as the trees.
        """
        if not times:
            raise BadInput("a policy that counts time needs step times; give at least one table")
        _check_depth(times, max(tree.depth for tree in trees))
        # Where one length ends and the next begins: half way.
        self._ends = [(a.num_tokens + b.num_tokens) // 2 for a, b in pairwise(times)]
        most = max(tree.num_nodes for tree in trees)
        levels = [trees[-1].truncate(depth).num_nodes for depth in range(trees[-1].depth + 1)]
        self.at = [PricesAtLength(one, most, levels, reads_root=reads_root) for one in times]
        """Each length's, by its place in `times`"""
        self.plain_seconds = times[0].times.step(1, 0)
        """Of a plain step of one sequence, at the shortest length"""
        if not self.plain_seconds > 0:
            raise BadInput("a plain step takes no time, by the step times; measure them again")

    def place(self, num_tokens: int) -> int:
        """Which table is nearest to a length of committed text."""
        return bisect_left(self._ends, num_tokens)


def _check_depth(times: Times, depth: int) -> None:
    """Raises BadInput: a table knows fewer levels."""
    for one in times:
        for each in (one.times, *(batch.times for batch in one.batches)):
            if len(each.draft_seconds) <= depth:
                raise BadInput(
                    f"the step times know {len(each.draft_seconds) - 1} draft levels and a"
                    f" tree has {depth}; measure as many"
                )


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
