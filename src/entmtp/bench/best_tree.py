"""The best static tree for this machine: acceptance from training, time measured here.

Knows: heads with candidate trees, and a short timing of their steps. Does not know: prompts'
texts, methods, reports.

Tokens per second of a tree are its mean acceptance length over the time of its step, draft
included. The trees take turns in one sequence, so that all meet the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch

from entmtp.bench.measure import Task
from entmtp.decode import Acceptor, ExactAcceptor, Sampling
from entmtp.engine import DecodeStats, Engine, GenerationParams
from entmtp.engine.batch import Batch
from entmtp.heads import DraftHeads, StaticTree
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import ROOT, Tree, chain, medusa_63

CONTEXT_LENGTH = 200
NUM_ROUNDS = 5
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
    target: TargetModel, heads: DraftHeads, candidates: Sequence[StaticTree], min_rows: int = 1
) -> TreeChoice:
    """Time the candidates beside plain decoding, and take the fastest that drafts at all."""
    trees = [entry.tree for entry in candidates]
    plain, *seconds = step_seconds(target, heads, [ROOT, *trees], min_rows)
    table = tuple(
        TimedTree(entry.tree, entry.mean_acceptance_length, time)
        for entry, time in zip(candidates, seconds, strict=True)
    )
    return TreeChoice(max(table, key=lambda row: row.tokens_per_second), table, plain)


@torch.inference_mode()
def step_seconds(
    target: TargetModel, heads: DraftHeads, trees: Sequence[Tree], min_rows: int = 1
) -> list[float]:
    """Median time of a step with each tree, behind a prompt of about 200 tokens."""

    def make_acceptor(rows: Sequence[Sampling], device: torch.device) -> Acceptor:
        return ExactAcceptor(early_exit=device.type == "cpu")

    batch = Batch(target, heads, make_acceptor, min_rows)
    length = min(CONTEXT_LENGTH, target.max_length // 2)
    prompt = [(7919 * place) % target.vocab_size for place in range(length)]
    capacity = length + sum(tree.num_nodes for tree in trees)
    times: list[list[float]] = [[] for _ in trees]
    for round_ in range(NUM_ROUNDS + 1):
        root = batch.join(prompt, Sampling(), capacity)
        for place in range(len(trees)):
            index = (place + round_) % len(trees)
            started = perf_counter()
            output = batch.step([trees[index]], [root])
            times[index].append(perf_counter() - started)
            root = output.token_ids[0][-1]
        batch.leave(0)
    # The first round builds buffers and warms kernels up.
    return [median(row[1:]) for row in times]


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
