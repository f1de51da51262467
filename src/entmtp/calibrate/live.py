"""Finalists end to end: every prompt by every one in turn, by the wall clock of the real engine.

Knows: engines, banks, prompts as ids. Does not know: who is a finalist and who has won
(`finalists.py`), files (`live_file.py`).

Each prompt is answered as it was for the rank trace, so the text is known; what is new is the time.
Static trees run alone first, on a part of the prompts, for a part of the time; then the chosen one
and the policies, each half of the prompts with the policies of the bank that has not seen it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from entmtp.calibrate.answers import AnswerConfig, answer_params
from entmtp.calibrate.finalists import Answered, Finalists, Rounds, choose_static, static_name
from entmtp.calibrate.live_file import Done, read_done, write_done
from entmtp.calibrate.rehearse import Fold
from entmtp.calibrate.throughput import Evaluation
from entmtp.engine import Engine, GenerationParams
from entmtp.engine.questions import Question
from entmtp.heads import DraftHeads
from entmtp.measure.paired import Method, Run, Task, run_in_turn, warm_up
from entmtp.scheduler import StaticPolicy, TreeBank, TreePolicy, policy_from_bank
from entmtp.scheduler.bank_file import bank_text
from entmtp.target import TargetModel

CHOOSING_SHARE = 0.25
"""Of the prompts and of the time, for choosing among the static trees"""


@dataclass(frozen=True)
class LiveConfig:
    """How long finalists run."""

    seconds: float = 120.0
    """Of answers, all together; 0 leaves the stage out. The last prompt is answered by all of them,
    so a little more"""


class LiveRun(NamedTuple):
    """What came of it."""

    finalists: Finalists
    """Who ran: if it was interrupted before, whoever began"""
    static: int
    """The place of the chosen static tree"""
    rounds: Rounds


@dataclass(frozen=True)
class LiveStage:
    """All that stays the same while finalists run."""

    target: TargetModel
    heads: DraftHeads
    questions: Sequence[Question]
    """The rows of the rank trace"""
    answers: AnswerConfig
    bank: TreeBank
    """Of all prompts: the static trees are its"""
    folds: Sequence[Fold]
    evaluation: Evaluation
    """Of the bank's trees, on all prompts"""
    config: LiveConfig
    path: Path
    """Of what is done, prompt by prompt"""

    def run(
        self, finalists: Finalists, tell: Callable[[float], None] = lambda seconds: None
    ) -> LiveRun:
        """Let them run until the time is spent or every prompt is answered.

        Where a run with the same banks was interrupted, it goes on behind the last prompt that all
        had answered.

        Args:
            tell: called with the seconds spent.
        """
        made_with = self._made_with()
        done = read_done(self.path, made_with) or Done(made_with, finalists)
        finalists = done.finalists
        share, choosing, comparing = self._plan(finalists)
        statics = {place: StaticPolicy(self.bank.trees[place].tree) for place in finalists.statics}
        trees = {static_name(place): policy for place, policy in statics.items()}
        self._answer(trees, choosing, share, done, tell)
        static = choose_static(finalists.statics, self.evaluation, done.of(choosing))
        best = {static_name(static): statics[static]}
        for number, (fold, rows) in enumerate(zip(self.folds, comparing, strict=True), start=1):
            rivals = {name: policy_from_bank(name, fold.bank) for name in finalists.policies}
            end = share + (1 - share) * number / len(self.folds)
            self._answer({**best, **rivals}, rows, end, done, tell)
        self.target.make_room()  # for whoever makes engines next
        rounds = Rounds(done.of(choosing), done.of(list(chain(*comparing))))
        return LiveRun(finalists, static, rounds)

    def _answer(
        self,
        policies: Mapping[str, TreePolicy],
        rows: Sequence[int],
        share: float,
        done: Done,
        tell: Callable[[float], None],
    ) -> None:
        """Some rows by each of the policies in turn, until so much of the time is spent."""
        tell(done.seconds)
        left = [index for index, row in enumerate(rows) if row not in done.rounds]
        end = share * self.config.seconds
        if not left or done.seconds >= end:
            return
        methods = self._ready(policies, rows[0])
        for index in left:
            runs = list(run_in_turn(methods, *self._task(rows[index]), index))
            done.rounds[rows[index]] = {run.method: _answered(run) for run in runs}
            done.seconds += sum(run.seconds for run in runs)
            write_done(self.path, done)
            tell(done.seconds)
            if done.seconds >= end:
                return

    def _plan(self, finalists: Finalists) -> tuple[float, list[int], list[list[int]]]:
        """Rows to choose a static tree by, and their share; those to compare on, of each fold.

        In an order that does not follow the text, both halves in turn.
        """
        generator = np.random.default_rng(self.bank.made_from.seed)
        rows = [generator.permutation(fold.rows).tolist() for fold in self.folds]
        share = 0.0 if len(finalists.statics) == 1 else CHOOSING_SHARE
        if not finalists.policies:  # then there is nothing else to do
            share = float(share > 0)
        cuts = [round(share * len(each)) for each in rows]
        first = [each[:cut] for each, cut in zip(rows, cuts, strict=True)]
        rest = [each[cut:] for each, cut in zip(rows, cuts, strict=True)]
        mixed = [row for row in chain(*zip_longest(*first)) if row is not None]
        return share, mixed, rest if finalists.policies else [[] for _ in rest]

    def _ready(self, policies: Mapping[str, TreePolicy], row: int) -> list[Method]:
        """Methods as ready as each would be alone, and warm."""
        sizes = {rows for policy in policies.values() for rows in policy.num_rows}
        self.target.make_room(len(sizes))
        methods = [
            Method(name, Engine(self.target, self.heads, policy))
            for name, policy in policies.items()
        ]
        warm_up(methods, *self._task(row))
        return methods

    def _task(self, row: int) -> tuple[Task, GenerationParams]:
        question = self.questions[row]
        return Task(*question), answer_params(question, self.answers)

    def _made_with(self) -> dict[str, Any]:
        """What the times depend on: all banks to the digit, and how prompts are answered."""
        banks = [bank_text(bank) for bank in (self.bank, *(fold.bank for fold in self.folds))]
        return {
            "banks": hashlib.sha256("".join(banks).encode()).hexdigest(),
            "answers": asdict(self.answers),
            "seconds": self.config.seconds,
        }


def _answered(run: Run) -> Answered:
    return Answered(run.decode_seconds, len(run.token_ids) - 1, run.stats.num_drafts)
