"""Which outputs equal plain decoding's, and what the others differ by.

Knows: runs, targets, case L02's ratio. Does not know: speed, methods beyond their names, reports.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from entmtp.bench.rounding import MAX_RATIO, first_difference, float32_twin, rounding_ratio
from entmtp.engine import GenerationParams
from entmtp.engine.request import resolve
from entmtp.measure.paired import Run, Runs, Task
from entmtp.target import TargetModel

Verdict = Literal["rounding", "fault", "unjudged"]


class Difference(NamedTuple):
    """The first token at which a method left plain decoding."""

    method: str
    prompt_id: str
    num_common: int
    """Tokens of the answer before it"""
    plain_id: int | None
    token_id: int | None
    """None where that output had ended"""
    ratio: float | None
    """Of case L02; None where it does not apply"""
    verdict: Verdict


def find_differences(
    runs: Runs, baseline: str, tasks: Sequence[Task], target: TargetModel, params: GenerationParams
) -> tuple[Difference, ...]:
    """Every method's first differences to the baseline, each judged.

    In float32 any difference is a fault. In 16 bits it is rounding up to the ratio of 2. Other
    formats have no float32 to be compared with: up to the target's `exact_length` a difference is a
    fault, and behind it nothing is said.
    """
    found = [
        (task, plain, run, index)
        for name, others in runs.items()
        if name != baseline
        for task, plain, run in zip(tasks, runs[baseline], others, strict=True)
        if (index := first_difference(plain.token_ids, run.token_ids)) is not None
    ]
    if not found:
        return ()
    is_rounded = target.has_float32_twin and target.number_format != "float32"
    exact = float32_twin(target) if is_rounded else None
    judge = _Judge(target, exact, params)
    return tuple(judge(task, plain, run, index) for task, plain, run, index in found)


class _Judge:
    """Calls a difference rounding or a fault."""

    def __init__(
        self, target: TargetModel, exact: TargetModel | None, params: GenerationParams
    ) -> None:
        self._target = target
        self._exact = exact
        self._params = params

    def __call__(self, task: Task, plain: Run, run: Run, index: int) -> Difference:
        expected, got = _token(plain, index), _token(run, index)
        ratio: float | None = None
        verdict: Verdict = "fault"
        prefix = (*task.prompt_ids, *plain.token_ids[:index])
        # Equal prefixes end alike: an output that just stops is never rounding.
        if expected is not None and got is not None:
            if self._exact is not None:
                pair = (expected, got)
                ratio = self._ratio(self._exact, task, prefix, pair)
                verdict = "rounding" if ratio <= MAX_RATIO else "fault"
            elif not self._target.has_float32_twin and len(prefix) > self._target.exact_length:
                verdict = "unjudged"
        return Difference(run.method, task.prompt_id, index, expected, got, ratio, verdict)

    def _ratio(
        self, exact: TargetModel, task: Task, prefix: tuple[int, ...], pair: tuple[int, int]
    ) -> float:
        sampling = resolve(self._target, list(task.prompt_ids), self._params).sampling
        num_prompt = len(task.prompt_ids)
        return rounding_ratio(self._target, exact, prefix, pair, sampling, num_prompt)


def _token(run: Run, index: int) -> int | None:
    return run.token_ids[index] if index < len(run.token_ids) else None
