"""How long a step takes: medians of measured sizes, and what follows of those in between.

Knows: times by rows, levels, context and batch size. Does not know: models, who measured,
acceptance.

Times are those of a step behind others with as many rows. One behind a step with another number of
rows, a *switch*, takes longer by `switch_seconds`: a runtime has a copy of its own for each number,
and what the last step read is not what this one needs. One of a policy that looks at something
takes longer by what the look costs (`look_seconds`); plain decoding and static trees look at
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import NamedTuple

from entmtp.errors import BadInput


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the parts of a step at one context length and one batch size.

    A step with a tree takes `verify(rows) + draft(depth) + host`; plain decoding is one row, no
    draft. Between measured sizes a time is interpolated, and none is shorter than that of less
    work (pool-adjacent-violators on the medians).
    """

    rows: tuple[int, ...]
    """Slots of each sequence that were measured, the root included, ascending from 1"""
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

    def verify(self, rows: float) -> float:
        """Behind the largest measured size, its last slope goes on."""
        return self._at(rows, self.verify_seconds)

    def draft(self, rows: int, depth: int) -> float:
        """Seconds of drafting a tree of `rows` nodes, root included, `depth` deep."""
        return self.draft_seconds[depth] + (self.width(rows) if depth else 0.0)

    def width(self, rows: int) -> float:
        """What drafting a tree of so many nodes takes longer than one path of its depth."""
        return self._at(rows, self.width_seconds) if self.width_seconds else 0.0

    def step(self, rows: int, depth: int) -> float:
        """Seconds of a whole step with a tree of `rows` nodes, root included, `depth` deep.

        It is no switch.
        """
        return self.verify(rows) + self.draft(rows, depth) + self.host_seconds

    def look_seconds(self, *, reads_root: bool, reads_draft: bool) -> float:
        """Of a step's looks. Who reads the draft pays for it only where something is drafted."""
        return self.root_seconds * reads_root + self.read_seconds * reads_draft

    def of_more(self, factor: float) -> StepTimes:
        """Times of `factor` times as many sequences, as if their rows were of these.

        Heads and host take no longer.
        """
        # Where its line bends, whole numbers on both sides: at those it is as exact as before.
        bends = (bend for each in self.rows for bend in (each // factor, -(-each // factor)))
        rows = sorted({*self.rows, *(max(1, int(bend)) for bend in bends)})
        return replace(
            self,
            rows=tuple(rows),
            verify_seconds=tuple(self.verify(factor * each) for each in rows),
            width_seconds=tuple(map(self.width, rows)),
        )

    def _at(self, rows: float, seconds: Sequence[float]) -> float:
        for place in range(1, len(self.rows)):
            if rows <= self.rows[place] or place == len(self.rows) - 1:
                low, high = self.rows[place - 1], self.rows[place]
                share = (rows - low) / (high - low)
                return seconds[place - 1] + share * (seconds[place] - seconds[place - 1])
        return seconds[0]


class OfBatch(NamedTuple):
    """Times of so many sequences that step together."""

    batch_size: int
    times: StepTimes
    """By rows of each sequence, of the whole step"""


class AtContext(NamedTuple):
    """Times at one length of the committed text."""

    num_tokens: int
    times: StepTimes
    """Of one sequence alone"""
    batches: tuple[OfBatch, ...] = ()
    """Of more, as far as they were measured, ascending by batch size"""

    def of_company(self, num_sequences: int) -> StepTimes:
        """Times of so many sequences that step together.

        Between measured batch sizes they are linear in the number, and no part of a step is shorter
        than that of a smaller batch. More sequences than were measured take as long as those of the
        largest batch with as many rows in all.
        """
        if num_sequences == 1:
            return self.times
        alone = OfBatch(1, self.times)
        batches = list(accumulate(self.batches, _no_shorter, initial=alone))
        for low, high in pairwise(batches):
            if num_sequences < high.batch_size:
                share = (num_sequences - low.batch_size) / (high.batch_size - low.batch_size)
                return _between(low.times, high.times, share)
        largest = batches[-1]
        if num_sequences == largest.batch_size:
            return largest.times
        return largest.times.of_more(num_sequences / largest.batch_size)


def _no_shorter(low: OfBatch, high: OfBatch) -> OfBatch:
    return high._replace(times=_between(low.times, high.times, 1.0))


def _between(low: StepTimes, high: StepTimes, share: float) -> StepTimes:
    """Part by part; none of `high` counts as shorter than that of `low`."""

    def part(few: float, many: float) -> float:
        return few + share * max(many - few, 0.0)

    rows = tuple(sorted({*low.rows, *high.rows}))
    return StepTimes(
        rows,
        tuple(part(low.verify(each), high.verify(each)) for each in rows),
        tuple(map(part, low.draft_seconds, high.draft_seconds)),
        part(low.host_seconds, high.host_seconds),
        tuple(part(low.width(each), high.width(each)) for each in rows),
        part(low.switch_seconds, high.switch_seconds),
        part(low.root_seconds, high.root_seconds),
        part(low.read_seconds, high.read_seconds),
    )


Times = Sequence[AtContext]
"""Ascending by length."""


def are_times(times: Times) -> bool:
    """Whether there are any, by ascending lengths, and each has the same ascending batch sizes.

    Of those each is above 1, and knows as many draft levels as one sequence alone.
    """
    lengths = [one.num_tokens for one in times]
    sizes = {tuple(batch.batch_size for batch in one.batches) for one in times}
    depths = [
        (len(batch.times.draft_seconds), len(one.times.draft_seconds))
        for one in times
        for batch in one.batches
    ]
    return (
        bool(lengths)
        and lengths == sorted(set(lengths))
        and len(sizes) == 1
        and all([1, *some] == sorted({1, *some}) for some in sizes)
        and all(of_batch == alone for of_batch, alone in depths)
    )


def at_any_length(times: StepTimes, batches: Sequence[OfBatch] = ()) -> tuple[AtContext, ...]:
    """One table for every length, and one for each batch size."""
    return (AtContext(0, times, tuple(batches)),)
