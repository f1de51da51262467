"""Paired, interleaved measurement: every prompt goes through every method in turn.

Knows: engines, prompts as ids, clocks. Does not know: which methods there are, what the figures
mean, how they are shown.

Machines drift; so a prompt's runs stand next to one another in time, and which method comes first
rotates from prompt to prompt. Only ratios within a prompt are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

from entmtp.data import Prompt
from entmtp.engine import DecodeStats, Engine, FinishReason, GenerationParams
from entmtp.errors import BadInput
from entmtp.trees import Tree

WARM_UP_TOKENS = 12


@dataclass(frozen=True)
class Method:
    """A way of generating, ready to run, under its one name."""

    name: str
    engine: Engine

    @property
    def trees(self) -> tuple[Tree, ...]:
        return self.engine.policy.trees


class Task(NamedTuple):
    """A prompt as every method gets it."""

    prompt_id: str
    kind: str
    prompt_ids: tuple[int, ...]


class Run(NamedTuple):
    """One task done by one method."""

    method: str
    prompt_id: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prefill_seconds: float
    decode_seconds: float
    """Everything behind the first token, by the wall clock: text and bookkeeping included"""
    stats: DecodeStats

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Generated ids over prefill and decode time; None where nothing was generated."""
        return _rate(len(self.token_ids), self.seconds)

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Ids behind the first one over the time behind it."""
        return _rate(len(self.token_ids) - 1, self.decode_seconds)


Runs = Mapping[str, Sequence[Run]]
"""The runs of each method, in the order of the tasks."""


def make_tasks(engine: Engine, prompts: Sequence[Prompt]) -> tuple[Task, ...]:
    """The first turn of each prompt, in the model's chat form where it has one.

    Raises:
        BadInput: there are none, or one does not fit into the context.
    """
    if not prompts:
        raise BadInput("no prompts to measure; give a file or a set that holds some")
    tasks = []
    for prompt in prompts:
        try:
            ids = engine.encode(prompt.content)
        except BadInput as error:
            raise BadInput(f"prompt {prompt.id}: {error}") from error
        tasks.append(Task(prompt.id, prompt.kind, tuple(ids)))
    return tuple(tasks)


def measure(
    methods: Sequence[Method],
    tasks: Sequence[Task],
    params: GenerationParams,
    on_run: Callable[[Run], None] = lambda run: None,
) -> Runs:
    """Run every task with every method; a warm-up of each method comes first and is not counted."""
    warm_up(methods, tasks[0], params)
    runs: dict[str, list[Run]] = {method.name: [] for method in methods}
    for index, task in enumerate(tasks):
        for run in run_in_turn(methods, task, params, index):
            runs[run.method].append(run)
            on_run(run)
    return runs


def warm_up(methods: Sequence[Method], task: Task, params: GenerationParams) -> None:
    """Let each method say a few tokens, so that none pays for being first."""
    names = [method.name for method in methods]
    assert len(set(names)) == len(names), "methods have one name each"
    short = WARM_UP_TOKENS if params.max_tokens is None else min(params.max_tokens, WARM_UP_TOKENS)
    for method in methods:
        run_task(method, task, replace(params, max_tokens=short))


def run_in_turn(
    methods: Sequence[Method], task: Task, params: GenerationParams, index: int
) -> Iterator[Run]:
    """One task by every method, as the runs end; which one begins rotates with the task's index."""
    first = index % len(methods)
    for method in (*methods[first:], *methods[:first]):
        yield run_task(method, task, params)


def run_task(method: Method, task: Task, params: GenerationParams) -> Run:
    """One task, timed from the request to its last token."""
    started = perf_counter()
    result = method.engine.generate(task.prompt_ids, params)
    seconds = perf_counter() - started
    prefill = result.stats.prefill_seconds
    return Run(
        method.name,
        task.prompt_id,
        result.token_ids,
        result.finish_reason,
        prefill,
        seconds - prefill,
        result.stats,
    )


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None
