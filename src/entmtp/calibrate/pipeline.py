"""From prompts and a machine to a bank: every stage in its turn.

Knows: the order of the stages and where their files lie. Does not know: how a stage is computed,
flags, progress bars, reports.

A run that was interrupted is gone on with, whichever stage it was in. Step times and those of the
finalists are of this hour: once a bank is made of them they are gone, and the next run measures
anew. The bank is written last, whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain as joined
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.answers import AnswerConfig, plan_groups
from entmtp.calibrate.assemble import Candidates, Clock, assemble
from entmtp.calibrate.collect import FEW_PROMPTS, Progress, TraceConfig, collect_in
from entmtp.calibrate.finalists import conclude, find_finalists, static_name, with_finalists
from entmtp.calibrate.latency_table import LatencyTable, all_times, times_at
from entmtp.calibrate.live import LiveConfig, LiveStage
from entmtp.calibrate.refit import unseeing
from entmtp.calibrate.rehearse import Fold, Rehearsed, make_folds, rehearse, tuned
from entmtp.calibrate.timed_work import TimedWork
from entmtp.calibrate.timing import TimingConfig, measure_latency, trees_to_time
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.trace_file import StoredTrace
from entmtp.calibrate.walk import num_rows_with_steps
from entmtp.calibrate.work_folder import at_work, discard
from entmtp.data import Prompt
from entmtp.engine.made_for import made_for
from entmtp.engine.questions import Question
from entmtp.errors import BadInput
from entmtp.heads import DraftHeads
from entmtp.heads.fingerprint import heads_fingerprint
from entmtp.scheduler import MadeFor, TreeBank, write_bank
from entmtp.scheduler.bank import Finalist, MadeFrom
from entmtp.target import TargetModel

TIMED_SIZES = (8, 20, 64)
"""Beside the root alone and one chain for each head. With up to four heads these are eight numbers
of rows, and a runtime has a compiled copy of each; between them times are nearly straight lines"""
SHORT = 1024
"""A context with fewer tokens has room for few timed steps"""
BATCH_SIZE = 8
"""Steps of so many sequences are timed by default; an engine's default is the same"""


@dataclass(frozen=True)
class CalibrationConfig:
    """How much is measured, and where work lies meanwhile."""

    answers: AnswerConfig = field(default_factory=lambda: AnswerConfig(max_tokens=128))
    timing: TimingConfig = field(default_factory=TimingConfig)
    """Of one sequence"""
    live: LiveConfig = field(default_factory=LiveConfig)
    work: Path | None = None
    """Folder of finished work, kept for other heads of the same target; by default one beside the
    bank, which goes when that is there"""
    restart: bool = False
    """Work of other prompts or settings is made anew instead of refused, and all times are"""
    batch_sizes: tuple[int, ...] = (BATCH_SIZE,)
    """Sequences above one, ascending, whose steps together are timed as well"""


@dataclass(frozen=True)
class Calibration:
    """A bank, and what it was made of."""

    bank: TreeBank
    stored: StoredTrace
    tables: tuple[LatencyTable, ...]
    """Of one sequence, and of each larger batch size"""
    clock: Clock
    candidates: Candidates
    rehearsed: tuple[Rehearsed, ...]
    """Empty where a half of the prompts would have no step"""
    seconds: dict[str, float]
    """What each stage took"""


def calibrate(
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Prompt],
    out: Path,
    config: CalibrationConfig,
    progress: Progress = lambda stage, num_done, num_all: None,
    tables: Sequence[LatencyTable] = (),
) -> Calibration:
    """Make a bank and write it to `out`, whole or not at all.

    Args:
        tables: step times of each batch size, where another bank's for the same target and heads,
            of the same hour, are to be used; else they are measured.

    Raises:
        BadInput: no prompt can be answered, answers have no second token, or another calibration
            is at work in the folder.
        ArtefactError: the work folder is of other prompts or settings, or a file in it is broken.
    """
    with at_work(config.work, out) as work:
        made = _calibrate(work, target, heads, prompts, out, config, progress, tuple(tables))
        if config.work is None:
            discard(work)
    return made


def _calibrate(
    work: Path,
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Prompt],
    out: Path,
    config: CalibrationConfig,
    progress: Progress,
    tables: tuple[LatencyTable, ...],
) -> Calibration:
    """All stages, in the folder of the work."""
    seconds: dict[str, float] = {}
    with _counted(seconds, "trace"):
        stored = _trace(target, heads, prompts, work, config, progress)
    questions = list(joined(*plan_groups(target, prompts, config.answers)))
    timed = TimedWork(work, target, heads)
    if config.restart:
        timed.forget()
    with _counted(seconds, "times"):
        tables = tables or _times(timed, questions, stored.trace, config, progress)
    clock = clock_of(tables, stored.trace)
    wanted, origin = made_for(target, heads), made_from(stored)
    progress("fit", 0, 2)
    with _counted(seconds, "fit"):
        candidates, bank = _fit(stored.trace, clock, wanted, origin)
    progress("fit", 1, 2)
    with _counted(seconds, "judge"):
        folds, rehearsed = _judge(stored.trace, clock, wanted, origin)
    progress("fit", 2, 2)
    with _counted(seconds, "live"):
        judged = _Judged(bank, candidates, folds, rehearsed)
        live = _live(target, heads, questions, judged, timed, config, progress)
    bank = with_finalists(bank, candidates, live)
    write_bank(bank, out)
    timed.forget()
    return Calibration(bank, stored, tables, clock, candidates, rehearsed, seconds)


@contextmanager
def _counted(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = perf_counter()
    yield
    seconds[stage] = perf_counter() - started


def _trace(
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Prompt],
    work: Path,
    config: CalibrationConfig,
    progress: Progress,
) -> StoredTrace:
    how = TraceConfig(config.answers, restart=config.restart)
    path = work / f"trace-{heads_fingerprint(heads)}.safetensors"
    stored = collect_in(work, target, heads, prompts, path, how, progress)
    count, num_rows = num_rows_with_steps(stored.trace), stored.trace.num_rows
    if not count:
        discard(work)
        raise BadInput(
            f"all {num_rows} answers end with their first token, so there is no step"
            " to learn from; allow more tokens, or give other prompts"
        )
    if count < min(num_rows, FEW_PROMPTS):
        warnings.warn(
            f"only {count} of {num_rows} answers have a second token, and the others say nothing of"
            f" drafts: what is computed from so few is uncertain; {FEW_PROMPTS} or more are better",
            stacklevel=2,
        )
    return stored


def _times(
    timed: TimedWork,
    questions: Sequence[Question],
    trace: RankTrace,
    config: CalibrationConfig,
    progress: Progress,
) -> tuple[LatencyTable, ...]:
    """Of one sequence, and of each larger batch size; those that are finished are not repeated."""
    target, timing = timed.target, config.timing
    if target.max_length < SHORT:
        timing = replace(timing, contexts=(target.max_length // 8,), block=2)
    timings = [timing, *map(timing.of_batch, config.batch_sizes)]
    total = max(1, round(sum(each.seconds for each in timings)))
    texts = [question.prompt_ids for question in questions]
    trees = trees_to_time(trace.ranks, TIMED_SIZES)
    tables: list[LatencyTable] = []

    def measure(timing: TimingConfig) -> LatencyTable:
        before = sum(each.seconds for each in timings[: len(tables)])

        def tell(share: float) -> None:
            progress("times", min(round(before + share * timing.seconds), total), total)

        return measure_latency(target, timed.heads, texts, trees, timing, tell)

    for each in timings:
        tables.append(timed.table(each, measure))
    return tuple(tables)


def clock_of(tables: Sequence[LatencyTable], trace: RankTrace) -> Clock:
    """Step times, and those at the average length of the trace's text."""
    length = float(np.mean(trace.prompt_lengths + np.diff(trace.row_starts) / 2))
    typical = times_at(tables, length)
    return Clock(typical.times, all_times(tables), typical.batches)


def made_from(stored: StoredTrace) -> MadeFrom:
    """What a bank says of the text that it was made from."""
    answers, trace = stored.answers, stored.trace
    return MadeFrom(
        str(answers["prompts"]),
        trace.num_rows,
        tuple(sorted(set(trace.kinds))),
        float(answers["temperature"]),
        int(answers["seed"]),
    )


def _fit(
    trace: RankTrace, clock: Clock, wanted: MadeFor, origin: MadeFrom
) -> tuple[Candidates, TreeBank]:
    candidates = Candidates.of(trace, clock.typical, origin.seed)
    seeing = assemble(candidates, clock, wanted, origin)
    # A look at the root takes its time in every step; where it tells nothing it is left out.
    seeing, unseen = (tuned(bank, trace, clock.typical) for bank in (seeing, unseeing(seeing)))
    rates = [bank.timing.rates["throughput"] for bank in (seeing, unseen)]
    return candidates, seeing if rates[0] > rates[1] else unseen


def _judge(
    trace: RankTrace, clock: Clock, wanted: MadeFor, origin: MadeFrom
) -> tuple[tuple[Fold, ...], tuple[Rehearsed, ...]]:
    """Each policy on rows that it was not fitted on, and the banks of both halves."""
    if num_rows_with_steps(trace) < 2:
        return (), ()
    folds = make_folds(trace, lambda half: _fit(half, clock, wanted, origin)[1], origin.seed)
    return folds, rehearse(folds, clock.typical, origin.seed)


class _Judged(NamedTuple):
    """A bank, and what replay says of it."""

    bank: TreeBank
    candidates: Candidates
    folds: tuple[Fold, ...]
    rehearsed: tuple[Rehearsed, ...]


def _live(
    target: TargetModel,
    heads: DraftHeads,
    questions: Sequence[Question],
    judged: _Judged,
    timed: TimedWork,
    config: CalibrationConfig,
    progress: Progress,
) -> tuple[Finalist, ...]:
    """The finalists by the wall clock; nothing where so few prompts decide nothing anyway."""
    total = config.live.seconds
    if not total or num_rows_with_steps(judged.candidates.trace) < FEW_PROMPTS:
        return ()
    predictions = judged.candidates.evaluation.predictions
    stage = LiveStage(
        target,
        heads,
        questions,
        config.answers,
        judged.bank,
        judged.folds,
        judged.candidates.evaluation,
        config.live,
        timed.live_path,
    )

    def tell(seconds: float) -> None:
        progress("live", round(min(seconds, total)), max(1, round(total)))

    run = stage.run(find_finalists(judged.candidates, judged.rehearsed), tell)
    promised = {static_name(place): one.tokens_per_second for place, one in enumerate(predictions)}
    promised |= {one.replayed.name: one.replayed.tokens_per_second for one in judged.rehearsed}
    return conclude(run.finalists, run.static, run.rounds, promised)
