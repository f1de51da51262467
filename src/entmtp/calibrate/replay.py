"""What runs over a rank trace would have accepted, step by step, exactly as a live run does.

Knows: rank traces, trees, policies, and times if it is given any. Does not know: models, heads.

Under the exact rule the text does not depend on the tree, so a trace of it says what any tree, any
chooser among trees and any policy accepts, at any temperature (METHOD §6.3).

Dimension key: N starts of all rows · S steps of a run · C candidate trees.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from math import nan
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.trace import RankTrace
from entmtp.scheduler import Signals, StepChoice, TreePolicy, places_in
from entmtp.scheduler.prices import is_switch
from entmtp.scheduler.times import Times
from entmtp.trees import Part, Path, Tree, replay
from entmtp.trees.replay import Counts


class Run(NamedTuple):
    """The steps of a run over all rows, row by row."""

    starts: Counts  # [S] where each step began
    accepted: Counts  # [S] drafts that it accepted

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens a step, the bonus token included; 0 without a step."""
        return float(1 + self.accepted.mean()) if self.accepted.size else 0.0


class PolicyRun(NamedTuple):
    """A run whose trees a policy chose."""

    run: Run
    trees: tuple[Tree, ...]
    """Verified in each step"""
    drafted: Counts  # [S] levels that the heads drafted
    drafted_nodes: Counts  # [S] nodes on these levels, the root included
    seconds: NDArray[np.float64]  # [S] that each step takes by the times given; else not a number
    reads_root: NDArray[np.bool_]  # [S] whether it looked at the root's signals
    reads_draft: NDArray[np.bool_]  # [S] whether it looked at a draft

    @property
    def tokens_per_second(self) -> float:
        """While decoding; not a number without times."""
        return float((1 + self.run.accepted).sum() / self.seconds.sum())


def accepted(trace: RankTrace, tree: Tree) -> Counts:
    """Drafts that a step with `tree` accepts at each start `[N]`."""
    return replay.accepted_lengths(trace.rank_rows, tree)


def mean_acceptance_length(trace: RankTrace, tree: Tree) -> float:
    """Tokens a step of a run with one tree, the bonus token included."""
    return replay_tree(trace, tree).mean_acceptance_length


def replay_tree(trace: RankTrace, tree: Tree) -> Run:
    """A run with one tree."""
    return _run(trace, accepted(trace, tree))


def replay_choices(trace: RankTrace, trees: Sequence[Tree], chosen: NDArray[np.integer]) -> Run:
    """A run that uses tree `chosen[i]` of `trees` at start i; `chosen` is `[N]`."""
    each = np.stack([accepted(trace, tree) for tree in trees])  # [C, N]
    return _run(trace, each[chosen, np.arange(len(chosen))])


def _run(trace: RankTrace, lengths: Counts) -> Run:
    starts = replay.visited_starts(lengths, trace.row_starts)
    return Run(starts, lengths[starts])


def replay_policy(
    trace: RankTrace,
    policy: TreePolicy,
    seeds: Sequence[int] | None = None,
    max_tokens: int | None = None,
    times: Times | None = None,
) -> PolicyRun:
    """A run with a live policy, asked as the engine asks it, a fresh selection for each row.

    Args:
        seeds: of each row's selection; 0 without.
        max_tokens: limit of an answer, to which the engine cuts trees at its end. Without it
            trees stay whole, and the same is accepted.
        times: what the clock says, for policies that learn from it.

    Raises:
        TreeError: the policy wants to see a draft that is no part of the wide tree, or chooses
            what was not drafted.
    """
    steps: list[_Step] = []
    for number, row in enumerate(trace.rows()):
        selection = policy.begin(0 if seeds is None else seeds[number])
        start, signals = row.start, Signals(0, 0)
        while start < row.stop - 1:
            said = start - row.start + 1
            signals = _before(trace, start, signals, selection.reads_root)
            signals = signals._replace(num_context=int(trace.prompt_lengths[number]) + said)
            most = sys.maxsize if max_tokens is None else max_tokens - said - 1
            choice = StepChoice(selection, signals, most)
            tree, levels = _ask(trace, start, choice)
            depth = min(_matched(trace.ranks[start].tolist(), tree), row.stop - start - 2)
            drafted = choice.widest.truncate(levels)
            last, context = signals.num_rows, signals.num_context
            looks = choice.reads_root, choice.reads_draft and levels > 0
            seconds = nan
            if times is not None:
                seconds = _seconds(times, context, drafted, tree, last, looks)
            steps.append(_Step(start, depth, tree, levels, drafted.num_nodes, seconds, *looks))
            start += depth + 1
            signals = Signals(
                signals.num_steps + 1, depth, seconds=seconds, num_rows=tree.num_nodes
            )
    starts, lengths, trees, levels_of, nodes, spent, reads_root, reads_draft = (
        zip(*steps, strict=True) if steps else ((),) * len(_Step._fields)
    )
    run = Run(_array(starts), _array(lengths))
    spent_seconds = np.array(spent, dtype=np.float64)
    return PolicyRun(
        run,
        trees,
        _array(levels_of),
        _array(nodes),
        spent_seconds,
        np.array(reads_root, dtype=np.bool_),
        np.array(reads_draft, dtype=np.bool_),
    )


class _Step(NamedTuple):
    start: int
    accepted: int
    tree: Tree
    levels: int
    num_nodes: int
    seconds: float
    reads_root: bool
    reads_draft: bool


def _before(trace: RankTrace, start: int, signals: Signals, reads_root: bool) -> Signals:
    """What is known before a step, with its root's signals if they are wanted."""
    if not reads_root:
        return signals
    return signals._replace(
        root_probability=float(trace.root_probability[start]),
        root_entropy=float(trace.root_entropy[start]),
    )


def _seconds(
    times: Times,
    num_context: int,
    drafted: Tree,
    tree: Tree,
    last_rows: int,
    looks: tuple[bool, bool],
) -> float:
    """Of a step that drafts one tree and verifies another, at the nearest measured length.

    Args:
        looks: whether at the root, and at a draft.
    """
    here = min(times, key=lambda one: abs(one.num_tokens - num_context)).times
    spent = here.draft(drafted.num_nodes, drafted.depth) + here.host_seconds
    spent += here.look_seconds(reads_root=looks[0], reads_draft=looks[1])
    switch = here.switch_seconds * is_switch(tree.num_nodes, last_rows)
    return spent + here.verify(tree.num_nodes) + switch


def _array(values: Sequence[int]) -> Counts:
    return np.array(values, dtype=np.int64)


def _ask(trace: RankTrace, start: int, choice: StepChoice) -> tuple[Tree, int]:
    """What is verified in a step, and how many levels were drafted for it."""
    log_probs: list[float] = []
    if choice.reads_draft:
        nodes = places_in(trace.wide_tree, choice.widest)
        log_probs = trace.log_probs[start, list(nodes)].tolist()
    levels = choice.widest.depth
    if choice.stops_draft:
        wishes = (choice.goes_on(depth, log_probs) for depth in range(1, levels))
        levels = next((d for d, wish in enumerate(wishes, start=1) if not wish), levels)
    chosen = choice.choose(log_probs)
    return chosen.tree if isinstance(chosen, Part) else chosen, levels


def _matched(ranks: Sequence[int], tree: Tree) -> int:
    """How deep a true path lies in a tree."""
    paths = _paths(tree)
    depth = 0
    while depth < len(ranks) and tuple(ranks[: depth + 1]) in paths:
        depth += 1
    return depth


@lru_cache(maxsize=1024)
def _paths(tree: Tree) -> frozenset[Path]:
    return frozenset(tree.paths)
