"""What could be done at each start, what it leads to, and how long whole runs then take.

Knows: traces, times, trees. Does not know: how to choose.

The steps of a row emit the same tokens whatever is chosen. So the most tokens a second are the
fewest seconds, and the rate λ of METHOD §6.4 falls out wherever a choice knows the future: the
sum of `tokens - λ · seconds` over a row is a constant less λ times its seconds.

A run is charged for its switches: it has a sequence. Choices that are made start by start,
`fastest` and `greedy` too, have none and ignore them.

Dimension key: N starts · O options of a start · R rows · C runs side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, accepted_at, next_starts, row_tokens
from entmtp.scheduler.banded import union
from entmtp.scheduler.times import StepTimes
from entmtp.trees import Tree

Choose = Callable[[Places, Places], Places]
"""(runs, starts), one each per lane, to the option taken there."""


@dataclass(frozen=True)
class Options:
    """At each start: options, how many drafts each accepts, and how long it takes."""

    trace: RankTrace
    accepted: Places  # [N, O]
    seconds: Floats  # [N, O]; infinite where the option is not there
    next_starts: Places  # [N, O]
    sizes: Places  # [N, O] rows that it verifies
    switch_seconds: float
    """Of a step that verifies another number of rows than the one before it in its row"""

    @classmethod
    def of(
        cls,
        trace: RankTrace,
        accepted: Places,
        seconds: Floats,
        sizes: Places | None = None,
        switch_seconds: float = 0.0,
    ) -> Options:
        """`seconds` and `sizes` may leave out the starts, where they do not matter.

        Without sizes nothing is a switch.
        """
        same = np.zeros(accepted.shape[1], dtype=np.int64)
        columns = [next_starts(trace, column) for column in accepted.T]
        return cls(
            trace,
            accepted,
            np.broadcast_to(seconds, accepted.shape),
            np.stack(columns, axis=1),
            np.broadcast_to(same if sizes is None else sizes, accepted.shape),
            switch_seconds,
        )

    @property
    def num_tokens(self) -> int:
        """Of a whole run over all rows."""
        return int(row_tokens(self.trace).sum())

    def run(self, choose: Choose, num_runs: int = 1) -> Floats:
        """Seconds `[C, R]` of runs side by side; all rows of all runs take their steps at once."""
        some = np.flatnonzero(row_tokens(self.trace) > 0)
        rows, runs = np.tile(some, num_runs), np.repeat(np.arange(num_runs), len(some))
        starts, ends = self.trace.row_starts[rows], self.trace.row_starts[rows + 1] - 1
        seconds = np.zeros((num_runs, self.trace.num_rows))
        last = None
        while len(starts):
            option = choose(runs, starts)
            seconds[runs, rows] += self.seconds[starts, option]
            sizes = self.sizes[starts, option]
            if last is not None:
                seconds[runs, rows] += self.switch_seconds * (sizes != last)
            starts = self.next_starts[starts, option]
            on = starts < ends
            starts, ends, runs, rows, last = starts[on], ends[on], runs[on], rows[on], sizes[on]
        return seconds

    def run_fixed(self, choices: Places) -> Floats:  # [C, N]
        """Seconds `[C, R]` of runs that take `choices` at each start, whatever came before."""
        return self.run(lambda runs, starts: choices[runs, starts], len(choices))

    def row_seconds(self, choice: Places) -> Floats:  # [N]
        """Seconds of each row `[R]`."""
        seconds: Floats = self.run_fixed(choice[None])[0]
        return seconds

    def tokens_per_second(self, choice: Places) -> float:  # [N]
        seconds = float(self.row_seconds(choice).sum())
        return self.num_tokens / seconds if seconds else 0.0

    def visited(self, choice: Places) -> NDArray[np.bool_]:  # [N]
        """Which starts a run that takes `choice` begins a step at."""
        is_visited = np.zeros(len(choice), dtype=np.bool_)

        def look(runs: Places, starts: Places) -> Places:
            is_visited[starts] = True
            return choice[starts]

        self.run(look)
        return is_visited


def bank_options(
    trace: RankTrace,
    trees: Sequence[Tree],
    times: StepTimes,
    levels: int = 0,
    *,
    reads_root: bool = False,
) -> Options:
    """Each tree of a bank is an option everywhere.

    Args:
        levels: of the draft that must be there before the choice, whatever is then chosen. It is a
            draft of all trees together, which is looked at, and charged for.
        reads_root: whether the choice looks at the root's signals, which is charged for too.
    """
    accepted = np.stack([accepted_at(trace, tree) for tree in trees], axis=1)
    seconds = [times.step(tree.num_nodes, tree.depth) for tree in trees]
    if levels:
        whole = union(trees)
        depths = [max(tree.depth, levels) for tree in trees]
        seconds = [
            times.verify(tree.num_nodes)
            + times.draft(whole.truncate(depth).num_nodes, depth)
            + times.host_seconds
            for tree, depth in zip(trees, depths, strict=True)
        ]
    sizes = np.array([tree.num_nodes for tree in trees])
    look = times.look_seconds(reads_root=reads_root, reads_draft=levels > 0)
    return Options.of(trace, accepted, np.array(seconds) + look, sizes, times.switch_seconds)


def fastest(options: Options) -> Places:
    """The choice `[N]` at every start that ends its row soonest: it knows all that will come.

    Backwards from the end of each row, over all options.
    """
    choice = np.zeros(len(options.accepted), dtype=np.int64)
    left = np.zeros(len(options.accepted))
    for row in options.trace.rows():
        for start in range(row.stop - 2, row.start - 1, -1):
            seconds = options.seconds[start] + left[options.next_starts[start]]
            choice[start] = best = int(seconds.argmin())
            left[start] = seconds[best]
    return choice


def greedy(options: Options) -> Places:
    """The choice `[N]` that knows what each option accepts now, but nothing of later steps.

    It takes the most of `tokens - λ · seconds`, with λ the tokens per second that it reaches so
    (Dinkelbach).
    """
    tokens = options.accepted + 1
    rate = 0.0
    choice = np.zeros(len(tokens), dtype=np.int64)
    while True:
        worth = tokens - rate * options.seconds if rate else -options.seconds
        better = worth.argmax(axis=1)
        faster = options.tokens_per_second(better)
        if faster <= rate:
            return choice
        rate, choice = faster, better
