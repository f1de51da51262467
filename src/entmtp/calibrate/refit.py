"""A bank whose `throughput` looks at other scores, or was fitted on other rows.

Knows: banks, traces, scores. Does not know: models, files, who wins.

Trees, offer and step times stay as they are; what is expected of each tree, the rates, and whether
drafts are stopped are fitted anew, by the code that fits them in a calibration. So two such banks
differ by what their policies look at, and by nothing else.

Dimension key: N starts · S fitted starts · O trees of the bank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from entmtp.calibrate.assemble import blind_stage, stage_of, stage_scores
from entmtp.calibrate.rehearse import tuned
from entmtp.calibrate.scores import Score, acceptance_average, scores, tree_score
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, accepted_at, row_ends, visited
from entmtp.errors import BadInput
from entmtp.scheduler import Stage, TreeBank
from entmtp.scheduler.banded import union
from entmtp.scheduler.times import StepTimes


class Looks(NamedTuple):
    """What `throughput` looks at."""

    before: str | None = None
    """The score before drafting; None for nothing: then every step is expected to be the average
    one until its first level is drafted"""
    behind: str | None = None
    """The score behind the whole draft, which is then never stopped; None for g1, g2, … behind
    each level"""


def refit(
    bank: TreeBank, trace: RankTrace, times: StepTimes, looks: Looks | None = None
) -> TreeBank:
    """The bank with the tables of `throughput`, and all rates, fitted on a trace.

    Args:
        times: of the rows, for the rates.

    Raises:
        BadInput: there is no such score.
    """
    looks = looks or Looks()
    at = np.arange(len(trace.ranks)) < row_ends(trace)
    blind = blind_stage(_accepted(bank, trace, at), at)
    before = _stage(bank, trace, looks.before or "p0")
    if looks.behind is None:
        known = stage_scores(trace)[1:]
        behind = [_stage(bank, trace, score.name) for score in known]
    else:
        behind = [_stage(bank, trace, looks.behind)]
    acceptance = replace(bank.acceptance, stages=(before, *behind), blind=blind)
    timing = replace(bank.timing, looks_at_root=looks.before is not None)
    return tuned(replace(bank, acceptance=acceptance, timing=timing), trace, times)


def unseeing(bank: TreeBank) -> TreeBank:
    """The bank with a `throughput` that looks at nothing before drafting."""
    return replace(bank, timing=replace(bank.timing, looks_at_root=False))


def known_scores(bank: TreeBank, trace: RankTrace) -> dict[str, Score]:
    """Every score that is known in front of a step, by name.

    `accepted` is that of a run with the best static tree, and right only where such a run begins a
    step; `sum_tree` is of the trees that the bank offers, as a policy reads it.
    """
    root = trace.root_probability.astype(np.float64)
    drafted = tree_score(trace, union(bank.offer))
    average = acceptance_average(trace, accepted_at(trace, bank.best_static))
    weighted = Score("p0sum_tree", root * drafted.values, drafted.levels)
    return {**scores(trace), "sum_tree": drafted, "p0sum_tree": weighted, "accepted": average}


def _stage(bank: TreeBank, trace: RankTrace, name: str) -> Stage:
    """A table for each tree of the bank."""
    known = known_scores(bank, trace)
    if name not in known:
        raise BadInput(f"no score {name!r} to fit by; known: {', '.join(known)}")
    score = known[name]
    at = np.arange(len(trace.ranks)) < row_ends(trace)
    if name == "accepted":
        is_visited = np.zeros_like(at)
        is_visited[visited(trace, accepted_at(trace, bank.best_static))] = True
        at &= is_visited
    return stage_of(_accepted(bank, trace, at), score, at)


def _accepted(bank: TreeBank, trace: RankTrace, at: NDArray[np.bool_]) -> Places:
    """Drafts `[S, O]` that each tree accepts at some starts."""
    return np.stack([accepted_at(trace, entry.tree)[at] for entry in bank.trees], axis=1)
