"""The best static tree for this machine: acceptance from training, time measured here.

Knows: heads with candidate trees, and a short timing of their steps on a few prompts. Does not
know: methods, reports.

Tokens per second of a tree are its mean acceptance length over the time of its step, draft
included. The trees take turns by the step, so that all meet the same machine. Where a runtime can
be ready for a few sizes only, they do so in heats, each beside plain decoding, and the best of all
heats meet in a last one: every tree is then timed in the form that it would run in alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter

import torch

from entmtp.engine import DecodeStats, Engine, GenerationParams
from entmtp.heads import DraftHeads, StaticTree
from entmtp.measure.paired import Task
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import Tree, chain, medusa_63

NUM_ROUNDS = 6
_TRIAL_TOKENS = 32


@dataclass(frozen=True)
class TimedTree:
    """A candidate and what is expected of it here."""

    tree: Tree
    mean_acceptance_length: float
    """Bonus token included"""
    step_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """While decoding."""
        return self.mean_acceptance_length / self.step_seconds


@dataclass(frozen=True)
class TreeChoice:
    """The best static tree, and the table that it was chosen from."""

    best: TimedTree
    table: tuple[TimedTree, ...]
    plain_step_seconds: float

    @property
    def expected_speedup(self) -> float:
        """Over plain decoding, prefill left aside."""
        return self.best.tokens_per_second * self.plain_step_seconds


def choose_tree(
    target: TargetModel,
    heads: DraftHeads,
    candidates: Sequence[StaticTree],
    tasks: Sequence[Task],
) -> TreeChoice:
    """Time the candidates beside plain decoding, and take the fastest that drafts at all.

    What the target was ready for before is forgotten (`make_room`): make engines afterwards.
    """
    heats = heats_of(candidates, target.max_pinned_rows)
    timed = [_heat(target, heads, heat, tasks) for heat in heats]
    if len(timed) > 1:
        timed.append(_heat(target, heads, _leaders(timed, len(heats[0])), tasks))
    target.make_room()
    plain = timed[-1].plain_step_seconds
    # A machine may be slower in one heat than in another: times are as if plain steps were alike.
    table = {row.tree: row for heat in timed for row in _at_pace(heat, plain)}
    best = table[timed[-1].best.tree]
    return TreeChoice(best, tuple(table[entry.tree] for entry in candidates), plain)


def heats_of(candidates: Sequence[StaticTree], max_sizes: int | None) -> list[Sequence[StaticTree]]:
    """Groups that, with plain decoding, have no more sizes than a runtime can be ready for.

    As few as will do, and as even as can be.
    """
    room = len(candidates) if max_sizes is None else max(1, max_sizes - 1)
    num_heats = max(1, -(-len(candidates) // room))
    return [candidates[place::num_heats] for place in range(num_heats)]


def _heat(
    target: TargetModel,
    heads: DraftHeads,
    candidates: Sequence[StaticTree],
    tasks: Sequence[Task],
) -> TreeChoice:
    """Some candidates beside plain decoding."""
    target.make_room()
    engines = [Engine(target)]
    engines += [Engine(target, heads, StaticPolicy(entry.tree)) for entry in candidates]
    plain, *seconds = step_seconds(engines, tasks)
    table = tuple(
        TimedTree(entry.tree, entry.mean_acceptance_length, time)
        for entry, time in zip(candidates, seconds, strict=True)
    )
    return TreeChoice(max(table, key=lambda row: row.tokens_per_second), table, plain)


def _leaders(heats: Sequence[TreeChoice], count: int) -> list[StaticTree]:
    """The best of all heats, each by its speed-up over plain decoding in its own."""
    speedups = {
        StaticTree(row.tree, row.mean_acceptance_length): (
            row.tokens_per_second * heat.plain_step_seconds
        )
        for heat in heats
        for row in heat.table
    }
    return sorted(speedups, key=lambda entry: speedups[entry], reverse=True)[:count]


def _at_pace(heat: TreeChoice, plain_step_seconds: float) -> list[TimedTree]:
    """A heat's rows as if its plain step had taken so long; as they are where nothing was timed."""
    if not math.isfinite(heat.plain_step_seconds) or not math.isfinite(plain_step_seconds):
        return list(heat.table)
    pace = plain_step_seconds / heat.plain_step_seconds
    return [replace(row, step_seconds=row.step_seconds * pace) for row in heat.table]


def step_seconds(engines: Sequence[Engine], tasks: Sequence[Task]) -> list[float]:
    """Median time of a decode step of each engine, on real text.

    All answer the same prompts at once and take turns by the step, so that all meet the same
    machine, and each accepts what it would. Ends of sequence are passed over: answers may be short.
    Infinite where a prompt leaves no room for a step.
    """
    params = GenerationParams(ignore_eos=True)
    times: list[list[float]] = [[] for _ in engines]
    for task in tasks:
        requests = [engine.add(task.prompt_ids, params) for engine in engines]
        for engine in engines:
            engine.step()  # prefill, and a first step that builds buffers and warms kernels up
        for round_ in range(NUM_ROUNDS):
            for place in range(len(engines)):
                index = (place + round_) % len(engines)
                if engines[index].num_running:
                    times[index].append(_timed_step(engines[index]))
        for engine, request in zip(engines, requests, strict=True):
            engine.forget(request)
    return [median(row) if row else math.inf for row in times]


def _timed_step(engine: Engine) -> float:
    started = perf_counter()
    engine.step()
    if engine.target.device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter() - started


def try_trees(
    target: TargetModel, heads: DraftHeads, tasks: Sequence[Task]
) -> tuple[StaticTree, ...]:
    """Candidates for heads that come without any: chains and Medusa's tree, tried on some tasks."""
    trees = [chain(length) for length in range(1, heads.num_draft_heads + 1)]
    trees.append(medusa_63().truncate(heads.num_draft_heads))
    params = GenerationParams(max_tokens=_TRIAL_TOKENS)
    tried = []
    for tree in trees:
        engine = Engine(target, heads, StaticPolicy(tree))
        stats = [engine.generate(task.prompt_ids, params).stats for task in tasks]
        tried.append(StaticTree(tree, _mean_acceptance_length(stats)))
    return tuple(tried)


def _mean_acceptance_length(stats: Sequence[DecodeStats]) -> float:
    num_drafts = sum(one.num_drafts for one in stats)
    return 1 + sum(one.num_accepted_tokens for one in stats) / num_drafts if num_drafts else 1.0
