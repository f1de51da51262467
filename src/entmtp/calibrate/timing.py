"""How long the real step takes here, by tree and context: trees take turns, a block of steps each.

Knows: an engine with its clocks, trees, texts. Does not know: acceptance models, what times are
good for.

All trees are tried on the same running text, some steps in a row each, so that all meet the same
machine and the same text; which one is first differs by visit, and contexts take turns too, as long
as there is time. Figures are medians with quartiles.

A runtime may keep a copy of the weights for each number of rows. A step then finds them in the
processor's cache only if the steps just before had as many rows; so a step of another number, a
*switch*, is timed apart. A step's own times are those of steps behind their like, which is what a
tree that is always used takes. How dear a switch is depends on how long ago that number was used,
and a policy mostly goes to and fro between a few. So a tree's block comes behind one step of the
next tree, and not long behind one of its own: three numbers are in play.

What a policy looks at has a price, too: the root's signals go over the whole vocabulary, and a
draft that is looked at is cut. One tree takes steps in three ways in turn: looking at nothing, at
its root, at a draft of one node more which is then cut off. Only the host's part of such steps
counts, which is much quieter than the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain as joined
from itertools import count
from time import perf_counter

import numpy as np
import torch

from entmtp.calibrate.latency_table import LatencyTable, Looks
from entmtp.calibrate.origin import Origin
from entmtp.calibrate.samples import Sample, Seen, Switch, looks_of
from entmtp.calibrate.told import WAYS, TakingTurns
from entmtp.decode.checks import check_count
from entmtp.engine import Engine, GenerationParams, TokenEvent
from entmtp.errors import BadInput
from entmtp.heads import DraftHeads
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment, load_average
from entmtp.trees import ROOT, Tree, chain
from entmtp.trees.replay import Ranks, best_static_tree

BATCH_SHARE = 1 / 3
"""Of the time for one sequence, for each larger batch size"""
LOOK_SHARE = 0.1
"""Of the time for steps, as much again for looks"""
LOOK_NODES = 8
"""Of the tree that looks are timed with, about"""
SIZES = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
"""Nodes, root included, of the trees that are timed by default."""


@dataclass(frozen=True)
class TimingConfig:
    """What is timed, and for how long."""

    contexts: tuple[int, ...] = (128, 512, 1024)
    """Committed tokens; those that leave no room for steps are left out"""
    batch_size: int = 1
    """Sequences that step together"""
    seconds: float = 60.0
    """To spend; every context is visited once whatever it takes"""
    block: int = 3
    """Steps of each tree on end in one visit to a context; the first one is a switch"""

    def of_batch(self, batch_size: int) -> TimingConfig:
        """The same for several sequences, in less time.

        Not at the longest context of several: the prefills alone would take most of the time.
        """
        contexts = sorted(self.contexts)
        return replace(
            self,
            contexts=tuple(contexts[: max(1, len(contexts) - 1)]),
            batch_size=batch_size,
            seconds=BATCH_SHARE * self.seconds,
        )


def trees_to_time(ranks: Ranks, sizes: Sequence[int] = SIZES) -> list[Tree]:
    """The best static tree of each size: trees that accept what trees of their size do."""
    return list(dict.fromkeys(best_static_tree(ranks, size) for size in sizes))


def measure_latency(
    target: TargetModel,
    heads: DraftHeads,
    texts: Sequence[Sequence[int]],
    trees: Sequence[Tree],
    config: TimingConfig | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> LatencyTable:
    """Time decode steps with each tree, the root alone and chains of every length.

    Args:
        texts: token ids of the workload, prompts or whole rows; joined to make contexts.
        progress: called with the share of the time that is spent.

    Raises:
        BadInput: there is no text, or no context that leaves room for steps.
        TreeError: the heads cannot fill a tree.
    """
    config = config or TimingConfig()
    check_count("batch_size", config.batch_size, 1, None, "a count from 1 up")
    check_count("block", config.block, 2, None, "a count from 2 up")
    chains = [chain(depth) for depth in range(1, heads.num_draft_heads + 1)]
    policy = TakingTurns(list(dict.fromkeys([ROOT, *chains, *trees])))
    # Each size is timed as a policy would meet it, not padded to another.
    target.make_room(len(policy.num_rows))
    bench = _Bench(target, heads, texts, policy, config)
    contexts = bench.contexts()
    started = perf_counter()
    seen = Seen()
    # Warms up: buffers, kernels, a runtime's copies; on a GPU graphs, which are of some contexts.
    for context in contexts if target.device.type == "cuda" else contexts[:1]:
        bench.visit(context, 0, Seen())
    for first in count():
        for context in contexts:
            bench.visit(context, first, seen)
            share = (perf_counter() - started) / config.seconds if config.seconds else 1.0
            progress(min(share, 1.0))
        if share >= 1:
            break
    return LatencyTable(
        origin=Origin.of(target, heads),
        machine=describe_environment(target) | {"load_average": load_average()},
        batch_size=config.batch_size,
        accepted_seconds=seen.accepted_seconds(),
        entries=tuple(seen.entries()),
        switches=tuple(seen.timed_switches()),
        looks=bench.looks(contexts[0]),
    )


class _Bench:
    """An engine, its texts, and one timed visit after the other."""

    def __init__(
        self,
        target: TargetModel,
        heads: DraftHeads,
        texts: Sequence[Sequence[int]],
        policy: TakingTurns,
        config: TimingConfig,
    ) -> None:
        self._engine = Engine(target, heads, policy, max_batch_size=config.batch_size)
        self._policy = policy
        self._config = config
        self._ids = list(joined.from_iterable(texts))
        self._num_visits = 0
        if not self._ids:
            raise BadInput("there is no text to time steps on; give prompts")

    def contexts(self) -> list[int]:
        """Those that leave room for a visit's steps, all of whose drafts may be accepted."""
        longest = [tree.depth + 1 for tree in self._policy.trees]
        most_steps = max(sum(longest), len(WAYS) * max(longest))
        steps = most_steps * (self._config.block + 1) + max(longest) + _PREFILLED
        most = self._engine.target.max_length - steps
        found = sorted({each for each in self._config.contexts if 0 < each <= most})
        if not found:
            raise BadInput(
                f"none of the contexts {list(self._config.contexts)} leaves room for timed steps;"
                f" give one of at most {max(most, 0)} tokens, or fewer trees"
            )
        return found

    def visit(self, context: int, first: int, seen: Seen) -> None:
        """Take a block of steps with every tree at one context, each behind a step of the next.

        Args:
            first: which tree begins; the others follow in their order.
            seen: where it is put down.
        """
        engine = self._engine
        begin = first % len(self._policy.trees)
        trees = self._policy.trees[begin:] + self._policy.trees[:begin]
        requests = [engine.add(prompt, _ENDLESS) for prompt in self._prompts(context)]
        try:
            self._policy.next = ROOT
            engine.step()  # prefill, and a step behind it
            self._drop(requests)
            self._sample(trees[0], context, requests)
            for tree, following in zip(trees, (*trees[1:], trees[0]), strict=True):
                self._sample(following, context, requests)
                block = [self._sample(tree, context, requests) for _ in range(self._config.block)]
                if tree.num_nodes != following.num_nodes:
                    seen.switches.append(Switch.of(block.pop(0), block))
                seen.samples.extend(block)
        finally:
            for request in requests:
                engine.forget(request)

    def looks(self, context: int) -> Looks:
        """Steps with one tree in each way, blocks of them in turn, for a share of the time."""
        sizes = {abs(tree.num_nodes - LOOK_NODES): tree for tree in self._policy.trees[1:]}
        whole = self._policy.drafted = sizes[min(sizes)]
        # The last node is a leaf.
        tree = Tree.from_paths(whole.paths[1:-1])
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        started, num_visits = perf_counter(), 0
        while not num_visits or perf_counter() - started < LOOK_SHARE * self._config.seconds:
            requests = [self._engine.add(prompt, _ENDLESS) for prompt in self._prompts(context)]
            try:
                self._policy.next = tree
                self._engine.step()  # prefill, and a step behind it
                self._drop(requests)
                for place in range(len(WAYS)):
                    way = self._policy.way = WAYS[(num_visits + place) % len(WAYS)]
                    block = range(self._config.block + 1)
                    taken = [self._sample(tree, context, requests) for _ in block]
                    # The first of a block is behind another way.
                    seconds[way] += [self._looked(one) for one in taken[1:]]
            finally:
                self._policy.way = "nothing"
                for request in requests:
                    self._engine.forget(request)
            num_visits += 1
        return looks_of(seconds)

    def _looked(self, sample: Sample) -> float:
        """The part of a step that a look is in; on a GPU the parts are not told apart."""
        return sample.total if self._engine.target.device.type == "cuda" else sample.host

    def _prompts(self, context: int) -> Iterator[list[int]]:
        """Another stretch of the text for each sequence and visit, from its beginning on again."""
        for _ in range(self._config.batch_size):
            begin = self._num_visits * context
            self._num_visits += 1
            yield [self._ids[(begin + place) % len(self._ids)] for place in range(context)]

    def _sample(self, tree: Tree, context: int, requests: Sequence[int]) -> Sample:
        engine = self._engine
        self._policy.next = tree
        length = float(np.mean(engine.cache_lengths))
        started = perf_counter()
        engine.step()
        parts = engine.last_step
        draft, verify, host = parts.draft, parts.verify, parts.host
        if engine.target.device.type == "cuda":
            # What was launched is waited for here and in the step's copy: parts by the host's
            # clock say little, the sum is right.
            torch.cuda.synchronize()
            verify, host = perf_counter() - started - draft, 0.0
        return Sample(tree, context, length, self._drop(requests), draft, verify, host)

    def _drop(self, requests: Sequence[int]) -> float:
        """Take what happened; drafts that were accepted in the latest step, on average."""
        latest = [
            [e.num_accepted for e in self._engine.take_events(r) if isinstance(e, TokenEvent)][-1]
            for r in requests
        ]
        return float(np.mean(latest))


_ENDLESS = GenerationParams(ignore_eos=True)
_PREFILLED = 2
"""Tokens that a visit's first step says: prefill's, and a plain step's"""
