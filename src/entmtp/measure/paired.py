"""Paired, interleaved measurement: every prompt goes through every method, by turns.

Knows: engines, prompts as ids, clocks. Does not know: which methods there are, what the figures
mean, how they are shown.

Machines drift, and a busy neighbour comes and goes within seconds; so the methods answer a prompt
at the same time, some steps of each in turn, in an order that is drawn anew for each round. What
the machine does in a second, it does to all of them. Only ratios within a prompt are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from time import perf_counter
from typing import NamedTuple

from entmtp.data import Prompt
from entmtp.engine import (
    DecodeStats,
    Engine,
    FinishEvent,
    FinishReason,
    GenerationParams,
    Result,
)
from entmtp.errors import BadInput
from entmtp.trees import Tree

WARM_UP_TOKENS = 12
STEPS_OF_A_TURN = 16
"""Enough that a method mostly follows itself, as in use; few enough that a round takes a second"""


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
    """One task by every method, some steps of each in turn; the runs as they end.

    Which one begins rotates with the task's index; later rounds have an order of their own, for a
    step also pays for what the one before it has left in the caches.
    """
    first = index % len(methods)
    dice = Random(index)
    running: list[_Running] = []
    try:
        for method in (*methods[first:], *methods[:first]):
            running.append(_Running(method, task, params))
        while running:
            runs = {one: one.take_turn() for one in running}
            running = [one for one, run in runs.items() if run is None]
            dice.shuffle(running)
            yield from filter(None, runs.values())
    finally:
        for one in running:
            one.close()


def run_task(method: Method, task: Task, params: GenerationParams) -> Run:
    """One task by one method."""
    (run,) = run_in_turn([method], task, params, 0)
    return run


class _Running:
    """One task that a method is at, timed while it has its turn."""

    def __init__(self, method: Method, task: Task, params: GenerationParams) -> None:
        started = perf_counter()
        self._method, self._task = method, task
        self._request_id = method.engine.add(task.prompt_ids, params)
        self._seconds = perf_counter() - started

    def take_turn(self) -> Run | None:
        """Some steps more; the run, if it has ended."""
        engine = self._method.engine
        result = None
        started = perf_counter()
        for _ in range(STEPS_OF_A_TURN):
            engine.step()
            for event in engine.take_events(self._request_id):
                if isinstance(event, FinishEvent):
                    result = event.result
            if result is not None:
                break
        self._seconds += perf_counter() - started
        return None if result is None else self._run(result)

    def close(self) -> None:
        """Give the task up."""
        self._method.engine.forget(self._request_id)

    def _run(self, result: Result) -> Run:
        prefill = result.stats.prefill_seconds
        return Run(
            self._method.name,
            self._task.prompt_id,
            result.token_ids,
            result.finish_reason,
            prefill,
            self._seconds - prefill,
            result.stats,
        )


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if count > 0 and seconds > 0 else None
