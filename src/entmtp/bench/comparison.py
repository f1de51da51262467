"""From methods and prompts to figures: measure, compare with plain decoding, sum up.

Knows: the parts of this room. Does not know: flags, terminals.

Mean acceptance length counts the bonus token and is taken over all steps of all prompts. Tokens
per second are all ids over all time, prefill included; a speed-up is the geometric mean of the
ratios of single prompts, and beside it stands their median.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from entmtp.bench.identity import Difference, find_differences
from entmtp.bench.methods import BASELINE
from entmtp.engine import GenerationParams
from entmtp.measure.paired import Method, Run, Runs, Task, measure
from entmtp.measure.statistics import CONFIDENCE, geometric_mean_interval, median_interval
from entmtp.target.environment import describe_environment, load_average
from entmtp.trees import Tree

SPEEDUP_METHOD = (
    "geometric mean of per-prompt ratios of tokens per second, with Student's t interval of their"
    " logarithms"
)
MEDIAN_METHOD = "median of the same ratios, between two of them (order statistics)"


@dataclass(frozen=True)
class MethodFigures:
    """What a table says of one method; None where there is nothing to say."""

    name: str
    tokens_per_second: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    speedup_median: float | None
    speedup_median_low: float | None
    speedup_median_high: float | None
    decode_speedup: float | None
    """Of the time behind the first token alone"""
    decode_speedup_low: float | None
    decode_speedup_high: float | None
    decode_speedup_median: float | None
    decode_speedup_median_low: float | None
    decode_speedup_median_high: float | None
    mean_acceptance_length: float | None
    num_identical: int
    max_rounding_ratio: float | None
    num_prompts: int
    num_prompt_tokens: int
    num_tokens: int
    num_steps: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]
    draft_share: float | None
    """Of the time behind the first token: the heads"""
    verify_share: float | None
    """The target's forward and logits"""
    host_share: float | None
    """All the rest"""
    step_milliseconds: float | None
    draft_milliseconds: float | None
    """Of a step, as the next two"""
    verify_milliseconds: float | None
    host_milliseconds: float | None
    num_nodes: int
    """Rows of the largest tree, the root included"""
    depth: int


@dataclass(frozen=True)
class Comparison:
    """A finished measurement."""

    figures: tuple[MethodFigures, ...]
    differences: tuple[Difference, ...]
    runs: Runs
    settings: dict[str, Any]
    environment: dict[str, Any]

    @property
    def faults(self) -> tuple[Difference, ...]:
        """Differences that rounding does not explain."""
        return tuple(one for one in self.differences if one.verdict == "fault")

    def to_json(self) -> dict[str, Any]:
        """All of it, ids included, so that every figure can be recounted."""
        return {
            "methods": [asdict(figures) for figures in self.figures],
            "differences": [one._asdict() for one in self.differences],
            "settings": self.settings,
            "environment": self.environment,
            "runs": [_run_json(run) for runs in self.runs.values() for run in runs],
        }


def compare(
    methods: Sequence[Method],
    tasks: Sequence[Task],
    params: GenerationParams,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Comparison:
    """Measure the methods, the baseline among them, and sum up."""
    target = methods[0].engine.target
    params = params.seeded()  # one seed for all, or nothing could be compared
    load_before = load_average()
    runs = measure(methods, tasks, params, on_run)
    load = {"load_average_before": load_before, "load_average_after": load_average()}
    differences = find_differences(runs, BASELINE, tasks, target, params)
    figures = [
        summarise(runs[method.name], runs[BASELINE], method.trees, differences)
        for method in methods
    ]
    return Comparison(
        tuple(figures),
        differences,
        runs,
        _settings(methods, tasks, params),
        describe_environment(target) | load,
    )


def summarise(
    runs: Sequence[Run],
    baseline: Sequence[Run],
    trees: Sequence[Tree],
    differences: Sequence[Difference],
) -> MethodFigures:
    """One method's figures from its runs and the baseline's."""
    stats = [run.stats for run in runs]
    num_tokens = sum(len(run.token_ids) for run in runs)
    num_steps = sum(one.num_drafts for one in stats)
    num_accepted = sum(one.num_accepted_tokens for one in stats)
    own = [one for one in differences if one.method == runs[0].method]
    return MethodFigures(
        name=runs[0].method,
        tokens_per_second=share(num_tokens, sum(run.seconds for run in runs)) or None,
        **ratio_figures("speedup", runs, baseline, lambda run: run.tokens_per_second),
        **ratio_figures("decode_speedup", runs, baseline, lambda run: run.decode_tokens_per_second),
        mean_acceptance_length=1 + num_accepted / num_steps if num_steps else None,
        num_identical=len(runs) - len(own),
        max_rounding_ratio=max((d.ratio for d in own if d.ratio is not None), default=None),
        num_prompts=len(runs),
        num_prompt_tokens=sum(one.num_prompt_tokens for one in stats),
        num_tokens=num_tokens,
        num_steps=num_steps,
        num_draft_tokens=sum(one.num_draft_tokens for one in stats),
        num_accepted_tokens=num_accepted,
        num_accepted_tokens_per_pos=_add_up(one.num_accepted_tokens_per_pos for one in stats),
        **_step_time(runs, num_steps),
        num_nodes=max(tree.num_nodes for tree in trees),
        depth=max(tree.depth for tree in trees),
    )


def _step_time(runs: Sequence[Run], num_steps: int) -> dict[str, float | None]:
    """How long a step takes, and whose time it is."""
    seconds = sum(run.decode_seconds for run in runs)
    draft = sum(run.stats.step_seconds.draft for run in runs)
    verify = sum(run.stats.step_seconds.verify for run in runs)
    parts = {"draft": draft, "verify": verify, "host": seconds - draft - verify}
    figures: dict[str, float | None] = {}
    for part, spent in parts.items():
        figures[f"{part}_share"] = spent / seconds if num_steps else None
        figures[f"{part}_milliseconds"] = 1000 * spent / num_steps if num_steps else None
    return figures | {"step_milliseconds": 1000 * seconds / num_steps if num_steps else None}


def ratio_figures(
    name: str,
    runs: Sequence[Run],
    baseline: Sequence[Run],
    rate: Callable[[Run], float | None],
) -> dict[str, float | None]:
    """Ratios of single prompts as `{name}` and `{name}_median`, each with `_low` and `_high`."""
    pairs = ((rate(run), rate(plain)) for run, plain in zip(runs, baseline, strict=True))
    ratios = [ours / theirs for ours, theirs in pairs if ours and theirs]
    figures: dict[str, float | None] = {}
    for key, interval in (
        (name, geometric_mean_interval(ratios)),
        (f"{name}_median", median_interval(ratios)),
    ):
        figures |= {key: interval.middle, f"{key}_low": interval.low, f"{key}_high": interval.high}
    return figures


def share(part: float, whole: float) -> float | None:
    """A quotient, or None where there is nothing to divide by."""
    return part / whole if whole > 0 else None


def _add_up(rows: Iterable[Sequence[int]]) -> list[int]:
    total: list[int] = []
    for row in rows:
        total.extend([0] * (len(row) - len(total)))
        for place, value in enumerate(row):
            total[place] += value
    return total


def _settings(
    methods: Sequence[Method], tasks: Sequence[Task], params: GenerationParams
) -> dict[str, Any]:
    return {
        "baseline": BASELINE,
        "max_tokens": params.max_tokens,
        **asdict(params.sampling),
        "banned": list(params.banned),
        "stop": list(params.stop),
        "eos_ids": list(methods[0].engine.target.eos_ids),
        "lossless": all(method.engine.is_lossless for method in methods),
        "num_prompts": len(tasks),
        "kinds": sorted({task.kind for task in tasks}),
        "speedup": SPEEDUP_METHOD,
        "speedup_median": MEDIAN_METHOD,
        "confidence": CONFIDENCE,
        "mean_acceptance_length": "tokens a step over all steps, the bonus token included",
        "tokens_per_second": "generated ids over prefill and decode time",
        "order": "every prompt by all methods, some steps of each in turn; warm-up not counted",
    }


def _run_json(run: Run) -> dict[str, Any]:
    return {
        "method": run.method,
        "prompt_id": run.prompt_id,
        "token_ids": list(run.token_ids),
        "finish_reason": run.finish_reason,
        "seconds": run.seconds,
        "prefill_seconds": run.prefill_seconds,
        "num_steps": run.stats.num_drafts,
        "num_draft_tokens": run.stats.num_draft_tokens,
        "num_accepted_tokens": run.stats.num_accepted_tokens,
        "step_seconds": asdict(run.stats.step_seconds),
    }
