"""What replay promises of the variants of `remedies.py`, and what the bank's table charges for it.

Knows: traces, step times, policies. Does not know: engines, clocks, what became of a promise.

Dimension key: R rows · S steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from entmtp.bench.comparison import share
from entmtp.calibrate.compare import replayed
from entmtp.calibrate.intervals import redraws
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.options import bank_options, fastest, greedy
from entmtp.calibrate.rehearse import StepParts, run_seconds, step_parts, switches
from entmtp.calibrate.replay import PolicyRun, replay_policy
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import row_tokens, rows_of
from entmtp.scheduler import StaticPolicy, TreeBank, TreePolicy
from entmtp.scheduler.times import StepTimes

Replays = Mapping[str, PolicyRun]
"""Of one variant, the run over each kind's rows"""


class Promises:
    """Promises over the same rows by one table of step times, against the best static tree."""

    def __init__(
        self,
        traces: Mapping[str, RankTrace],
        bank: TreeBank,
        times: StepTimes,
        max_tokens: int,
    ) -> None:
        """
        Args:
            traces: of each kind's rows, in the order of the live run.
            max_tokens: of an answer, to which the engine cuts trees at its end.
        """
        self._traces, self.times, self._max_tokens = traces, times, max_tokens
        self._base = self.seconds_of(
            self.replay(dict.fromkeys(traces, StaticPolicy(bank.best_static)))
        )
        self._weights = redraws(len(self._base), 0)
        self._tokens = sum(int(row_tokens(trace).sum()) for trace in traces.values())
        trees = dict.fromkeys((*bank.offer, bank.best_static))
        free = replace(times, switch_seconds=0.0)  # a bound is charged for nothing
        options = [bank_options(trace, list(trees), free) for trace in traces.values()]
        bounds = {"bank_this_step": greedy, "bank_perfect": fastest}
        seconds = {
            name: np.concatenate([one.row_seconds(choose(one)) for one in options])
            for name, choose in bounds.items()
        }
        self._perfect = self._gain(seconds["bank_perfect"])
        self.bounds = {name: self.of(each) for name, each in seconds.items()}

    def replay(self, policies: Mapping[str, TreePolicy]) -> Replays:
        """A run over each kind's rows, with this kind's policy."""
        return {
            kind: replay_policy(trace, policies[kind], max_tokens=self._max_tokens)
            for kind, trace in self._traces.items()
        }

    def seconds_of(self, runs: Replays) -> Floats:
        """Of each row `[R]`, all kinds' end to end."""
        return np.concatenate(
            [run_seconds(trace, runs[kind], self.times) for kind, trace in self._traces.items()]
        )

    def of(self, seconds: Floats) -> dict[str, float | None]:  # [R]
        """Tokens a second, the gain over the best static tree with its interval, and the part of
        the perfect chooser's gain that this is."""
        found = replayed(("", ""), seconds, self._base, self._tokens, self._weights)
        return {
            "tokens_per_second": found.tokens_per_second,
            "gain": found.gain,
            "low": found.low,
            "high": found.high,
            "gap_share": self.gap_share(found.gain),
        }

    def gap_share(self, gain: float | None) -> float | None:
        """A gain over the best static tree as a part of the perfect chooser's."""
        return None if gain is None else share(gain, self._perfect)

    def _gain(self, seconds: Floats) -> float:
        return float(self._base.sum() / seconds.sum()) - 1


@dataclass(frozen=True)
class Replayed:
    """A variant as replay has it."""

    runs: Replays
    parts: StepParts
    """What the bank's table charges its steps, all kinds' end to end"""
    num_steps: tuple[int, ...]
    """Of each row, in the order of the live run"""
    num_switches: int


def replayed_steps(runs: Replays, traces: Mapping[str, RankTrace], times: StepTimes) -> Replayed:
    """A variant's run, step by step."""
    parts = [step_parts(trace, runs[kind], times) for kind, trace in traces.items()]
    steps = [
        np.bincount(rows_of(trace, runs[kind].run.starts), minlength=trace.num_rows)
        for kind, trace in traces.items()
    ]
    num_switches = sum(int(switches(trace, runs[kind]).sum()) for kind, trace in traces.items())
    joined = StepParts(*(np.concatenate(each) for each in zip(*parts, strict=True)))
    return Replayed(runs, joined, tuple(np.concatenate(steps).tolist()), num_switches)


def charged(found: Replayed) -> dict[str, Any]:
    """Milliseconds of a step by the table, by its parts; switches, and steps by rows verified."""
    sizes = Counter(tree.num_nodes for run in found.runs.values() for tree in run.trees)
    milliseconds = {
        name: 1e3 * float(seconds.mean()) if len(seconds) else 0.0
        for name, seconds in found.parts._asdict().items()
    }
    return {
        "table_milliseconds": milliseconds,
        "num_steps": sum(found.num_steps),
        "num_switches": found.num_switches,
        "num_steps_by_rows": {str(rows): count for rows, count in sorted(sizes.items())},
    }
