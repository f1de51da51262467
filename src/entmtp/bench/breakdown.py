"""A comparison taken apart: by where prompts are from, and against one method instead of plain.

Knows: finished comparisons, and what prompts' names begin with. Does not know: flags, terminals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from entmtp.bench.comparison import Comparison, MethodFigures, ratio_figures, summarise
from entmtp.bench.methods import BASELINE
from entmtp.measure.paired import Method, Runs, Task

REFERENCE = "hydra-best"
"""What the methods that choose trees have to beat: the best static tree of the same heads."""

Ratios = Mapping[str, Mapping[str, float | None]]
"""By method: `ratio` and `decode_ratio`, of the time behind the first token alone; their medians
as `…_median`; each with `…_low` and `…_high`."""


@dataclass(frozen=True)
class Source:
    """The figures of the prompts from one place."""

    name: str
    figures: tuple[MethodFigures, ...]
    ratios: Ratios

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "methods": methods_json(self.figures, self.ratios),
        }


def source_of(task: Task) -> str:
    """`humaneval` of `HumanEval/7`, `gsm8k` of `gsm8k-test/7`; else the prompt's kind."""
    place, slash, _ = task.prompt_id.partition("/")
    if not slash or not place:
        return task.kind or "other"
    return place.lower().replace("-", "_").removesuffix("_test")


def paired_ratios(runs: Runs, reference: str = REFERENCE) -> Ratios:
    """Tokens per second of each method over the reference's on the same prompt; none without it."""
    if reference not in runs:
        return {}
    base = runs[reference]
    return {
        name: {
            **ratio_figures("ratio", own, base, lambda run: run.tokens_per_second),
            **ratio_figures("decode_ratio", own, base, lambda run: run.decode_tokens_per_second),
        }
        for name, own in runs.items()
    }


def by_source(
    comparison: Comparison, methods: Sequence[Method], tasks: Sequence[Task]
) -> tuple[Source, ...]:
    """The comparison of each source's prompts, in the order in which they first come."""
    places: dict[str, list[int]] = {}
    for place, task in enumerate(tasks):
        places.setdefault(source_of(task), []).append(place)
    return tuple(_source(name, own, comparison, methods) for name, own in places.items())


def _source(
    name: str, places: Sequence[int], comparison: Comparison, methods: Sequence[Method]
) -> Source:
    runs = {method: [own[place] for place in places] for method, own in comparison.runs.items()}
    ids = {run.prompt_id for run in runs[BASELINE]}
    differences = [one for one in comparison.differences if one.prompt_id in ids]
    figures = tuple(
        summarise(runs[method.name], runs[BASELINE], method.trees, differences)
        for method in methods
    )
    return Source(name, figures, paired_ratios(runs))


def methods_json(
    figures: Sequence[MethodFigures],
    ratios: Ratios,
    more: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Each method's figures with its ratios to the reference and whatever else is known of it."""
    return [asdict(one) | _own(ratios, one) | dict(more.get(one.name, {})) for one in figures]


def _own(ratios: Ratios, figures: MethodFigures) -> dict[str, Any]:
    found = ratios.get(figures.name)
    return {f"against_{REFERENCE.replace('-', '_')}": dict(found) if found else None}
