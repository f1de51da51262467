"""From prompts and a machine to a bank: every stage in its turn.

Knows: the order of the stages and where their files lie. Does not know: how a stage is computed,
flags, progress bars, reports.

The rank trace is what takes long, and is gone on with where a run was interrupted. Step times are
measured anew in each run, since they are of this hour. The bank is written last, whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from entmtp.calibrate.answers import AnswerConfig
from entmtp.calibrate.assemble import Candidates, Clock, assemble
from entmtp.calibrate.collect import Progress, TraceConfig, collect_trace
from entmtp.calibrate.latency_table import LatencyTable
from entmtp.calibrate.rehearse import Rehearsed, recommend, rehearse, tuned
from entmtp.calibrate.timing import TimingConfig, measure_latency, trees_to_time
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.trace_file import StoredTrace
from entmtp.calibrate.walk import row_tokens
from entmtp.data import Prompt
from entmtp.engine.made_for import made_for
from entmtp.engine.questions import encode_prompts
from entmtp.errors import BadInput
from entmtp.heads import DraftHeads
from entmtp.heads.fingerprint import heads_fingerprint
from entmtp.scheduler import MadeFor, TreeBank, write_bank
from entmtp.scheduler.bank import MadeFrom
from entmtp.target import TargetModel

TIMED_SIZES = (8, 20, 64)
"""Beside the root alone and one chain for each head. With up to four heads these are eight numbers
of rows, and a runtime has a compiled copy of each; between them times are nearly straight lines"""
SHORT = 1024
"""A context with fewer tokens has room for few timed steps"""


@dataclass(frozen=True)
class CalibrationConfig:
    """How much is measured, and where work lies meanwhile."""

    answers: AnswerConfig = field(default_factory=lambda: AnswerConfig(max_tokens=128))
    timing: TimingConfig = field(default_factory=TimingConfig)
    work: Path | None = None
    """Folder of finished work, kept for other heads of the same target; by default one beside the
    bank, which goes when that is there"""
    restart: bool = False
    """Work of other prompts or settings is made anew instead of refused"""


@dataclass(frozen=True)
class Calibration:
    """A bank, and what it was made of."""

    bank: TreeBank
    stored: StoredTrace
    table: LatencyTable
    clock: Clock
    candidates: Candidates
    rehearsed: tuple[Rehearsed, ...]
    """Empty where one prompt has no halves"""
    seconds: dict[str, float]
    """What each stage took"""


def calibrate(
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Prompt],
    out: Path,
    config: CalibrationConfig,
    progress: Progress = lambda stage, num_done, num_all: None,
) -> Calibration:
    """Make a bank and write it to `out`, whole or not at all.

    Raises:
        BadInput: no prompt can be answered, or answers have no second token.
        ArtefactError: the work folder is of other prompts or settings, or a file in it is broken.
    """
    seconds: dict[str, float] = {}
    work = config.work or out.with_name(f"{out.name}.work")
    with _counted(seconds, "trace"):
        stored = _trace(target, heads, prompts, work, config, progress)
    with _counted(seconds, "times"):
        table = _times(target, heads, prompts, stored.trace, config, progress)
    clock = clock_of(table, stored.trace)
    wanted, origin = made_for(target, heads), made_from(stored)
    progress("fit", 0, 2)
    with _counted(seconds, "fit"):
        candidates, bank = _fit(stored.trace, clock, wanted, origin)
    progress("fit", 1, 2)
    with _counted(seconds, "judge"):
        rehearsed = _judge(stored.trace, clock, wanted, origin)
    progress("fit", 2, 2)
    bank = replace(
        bank, timing=replace(bank.timing, recommended=recommend(rehearsed, origin.num_prompts))
    )
    write_bank(bank, out)
    if config.work is None:
        shutil.rmtree(work)
    return Calibration(bank, stored, table, clock, candidates, rehearsed, seconds)


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
    how = TraceConfig(config.answers, work=work, restart=config.restart)
    work.parent.mkdir(parents=True, exist_ok=True)
    # Its groups make the folder; the trace itself lies in it too.
    path = work / f"trace-{heads_fingerprint(heads)}.safetensors"
    stored = collect_trace(target, heads, prompts, path, how, progress)
    if not row_tokens(stored.trace).sum():
        shutil.rmtree(work)
        raise BadInput(
            f"all {stored.trace.num_rows} answers end with their first token, so there is no step"
            " to learn from; allow more tokens, or give other prompts"
        )
    return stored


def _times(
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Prompt],
    trace: RankTrace,
    config: CalibrationConfig,
    progress: Progress,
) -> LatencyTable:
    questions = encode_prompts(target, prompts, config.answers.max_prompt_tokens)
    texts = [question.prompt_ids for question in questions]
    total = max(1, round(config.timing.seconds))

    def tell(share: float) -> None:
        progress("times", round(share * total), total)

    timing = config.timing
    if target.max_length < SHORT:
        timing = replace(timing, contexts=(target.max_length // 8,), block=2)
    trees = trees_to_time(trace.ranks, TIMED_SIZES)
    return measure_latency(target, heads, texts, trees, timing, tell)


def clock_of(table: LatencyTable, trace: RankTrace) -> Clock:
    """Step times, and those at the average length of the trace's text."""
    typical = float(np.mean(trace.prompt_lengths + np.diff(trace.row_starts) / 2))
    return Clock(table.times(typical), table.all_times())


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
    bank = assemble(candidates, clock, wanted, origin)
    return candidates, tuned(bank, trace, clock.typical)


def _judge(
    trace: RankTrace, clock: Clock, wanted: MadeFor, origin: MadeFrom
) -> tuple[Rehearsed, ...]:
    """Each policy on rows that it was not fitted on."""
    if trace.num_rows < 2:
        return ()
    return rehearse(
        trace,
        clock.typical,
        lambda half: _fit(half, clock, wanted, origin)[1],
        origin.seed,
    )
