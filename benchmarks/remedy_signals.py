"""What each signal says of the step that it serves, and what it and all together could bring.

Knows: traces, scores, step times. Does not know: policies as they run, engines.

Dimension key: N starts · C columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from remedy_promises import Promises

from entmtp.calibrate.association import associate, mutual_information
from entmtp.calibrate.fit import expected_accept, fit_expected
from entmtp.calibrate.monotone import Floats, bins_of, quantile_edges
from entmtp.calibrate.options import bank_options, fastest
from entmtp.calibrate.refit import known_scores
from entmtp.calibrate.scores import Score
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import Places, accepted_at, row_ends, visited
from entmtp.scheduler import TreeBank
from entmtp.scheduler.banded import union
from entmtp.scheduler.times import StepTimes

BLEND = "blend"
NUM_BINS = 8
"""Of each score, in the blend"""
RIDGE = 10.0
"""Starts of evidence for 0 that each number of the blend begins with"""

Known = Mapping[str, Score]


class Blend:
    """All scores in one: a number for each bin of each score, added up.

    The numbers are fitted by least squares to what the union of the offered trees accepts.
    """

    def __init__(self, known: Known, accepted: Places, at: NDArray[np.bool_]) -> None:
        """`accepted` `[N]` drafts, and the starts that are fitted on."""
        self._edges = {
            name: quantile_edges(score.values[at], NUM_BINS) for name, score in known.items()
        }
        columns = self._columns(known)[at]
        squares = columns.T @ columns + RIDGE * np.eye(columns.shape[1])
        self._mean = float(accepted[at].mean()) if at.any() else 0.0
        self._weights = np.linalg.solve(squares, columns.T @ (accepted[at] - self._mean))

    def of(self, known: Known) -> Score:
        """Expected drafts, for each start of a trace."""
        levels = max(known[name].levels for name in self._edges)
        return Score(f"{BLEND}{levels}", self._mean + self._columns(known) @ self._weights, levels)

    def _columns(self, known: Known) -> Floats:  # [N, C]
        parts = [
            np.eye(len(edges) + 1)[bins_of(known[name].values, edges)]
            for name, edges in self._edges.items()
        ]
        return np.concatenate(parts, axis=1)


def with_blends(
    bank: TreeBank, calibration: RankTrace, evaluation: RankTrace
) -> tuple[dict[str, Score], dict[str, Score]]:
    """Every score of both traces, and blends that were fitted on the first: of what is known before
    drafting, behind one level, behind two, …"""
    known, found = known_scores(bank, calibration), known_scores(bank, evaluation)
    at = np.arange(len(calibration.ranks)) < row_ends(calibration)
    accepted = accepted_at(calibration, union(bank.offer))
    both = dict(known), dict(found)
    for levels in sorted({score.levels for score in known.values()}):
        some = {name: score for name, score in known.items() if score.levels <= levels}
        blend = Blend(some, accepted, at)
        for all_scores, own in zip(both, (known, found), strict=True):
            score = blend.of(own)
            all_scores[score.name] = score
    return both


def signal_rows(bank: TreeBank, trace: RankTrace, times: StepTimes, found: Known) -> dict[str, Any]:
    """Of each score, where a run with the best static tree begins its steps: r and mutual
    information with what that tree then accepts, and with what the perfect chooser takes there.

    In nats; beside them how much there is to know.
    """
    lengths = accepted_at(trace, bank.best_static)
    starts = visited(trace, lengths)
    options = bank_options(trace, bank.offer, replace(times, switch_seconds=0.0))
    choice = fastest(options)
    rows = []
    for score in found.values():
        told = associate(score, lengths, starts)._asdict()
        of_choice = mutual_information(score.values[starts], choice[starts])
        rows.append({**told, "levels": score.levels, "mutual_information_of_choice": of_choice})
    return {
        "num_steps": len(starts),
        "entropy_of_accepted": entropy(lengths[starts]),
        "entropy_of_choice": entropy(choice[starts]),
        "scores": rows,
    }


def entropy(values: Places) -> float:
    """Of counted values, in nats."""
    counts = np.unique(values, return_counts=True)[1]
    shares = counts / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())


def bounds_by_score(
    bank: TreeBank,
    traces: tuple[RankTrace, RankTrace],
    scores: tuple[Known, Known],
    promises: Promises,
) -> dict[str, Any]:
    """What choosing by one score alone brings, without adaptation: fitted on the first trace,
    replayed on the second; as looks and switches cost, and as if they were free."""
    times = promises.times
    free = replace(times, switch_seconds=0.0, root_seconds=0.0, read_seconds=0.0)
    rows = {}
    for name, known in scores[0].items():
        if name == "accepted":
            continue  # between the steps of its own run it is not what a policy would know
        pair = known, scores[1][name]
        rows[name] = {
            "priced": promises.of(_seconds(bank, traces, pair, times)),
            "free": promises.of(_seconds(bank, traces, pair, free)),
        }
    return rows


def _seconds(
    bank: TreeBank,
    traces: tuple[RankTrace, RankTrace],
    pair: tuple[Score, Score],
    times: StepTimes,
) -> Floats:
    """Of each row of the second trace."""
    reads_root = pair[0].reads_root or pair[0].name.startswith(BLEND)
    fit_options, options = (
        bank_options(trace, bank.offer, times, pair[0].levels, reads_root=reads_root)
        for trace in traces
    )
    model = fit_expected(fit_options, pair[0])
    worth = expected_accept(model, pair[1].values) - model.tokens_per_second * options.seconds
    return options.row_seconds(worth.argmax(axis=1))
