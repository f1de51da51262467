"""Numbers that say how predictable the text is right now, fresh in the step that they serve.

    accepted    running mean of the drafts accepted in past steps
    p0          the root's top-1 probability
    entropy     of the root's distribution in nats, negative: more is surer, as everywhere
    cD          confidence of head D's best child on the greedy path
    gD          c_1 · … · c_D, the probability of the greedy path down to depth D
    sum_g       g_1 + g_2 + …: drafts that the greedy path expects to have accepted
    sum_tree    the same over all paths that are drafted, not the greedy one alone
    p0gD        p0 · gD, as the paper has it (METHOD §1.4); so p0sum_g and p0sum_tree

The root is said already, so p0 is no part of what is to be accepted (METHOD §6.1): it is there as
a measure of entropy. Knows: signals. Does not know: policies, trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from entmtp.errors import BadInput
from entmtp.scheduler.base import Signals
from entmtp.trees import Tree

MAX_DEPTH = 64


class Known(NamedTuple):
    """What a score may be made of."""

    signals: Signals
    accepted: float
    """Moving average of accepted drafts"""
    chain: Sequence[float] = ()
    """c_1, c_1·c_2, … as deep as has been drafted; for `sum_tree`, of each level the sum of its
    paths' probabilities"""


@dataclass(frozen=True)
class Score:
    """One of the scores, as it is named."""

    name: str
    depth: int
    """Levels of the draft that it looks at; 0 for none"""
    reads_root: bool
    of: Callable[[Known], float] = field(repr=False)
    """With a chain that has not come so far yet, the most that it can still be"""
    least: Callable[[Known], float] = field(repr=False)
    """And the least"""


_BEFORE: dict[str, tuple[bool, Callable[[Known], float]]] = {
    "accepted": (False, lambda known: known.accepted),
    "p0": (True, lambda known: known.signals.root_probability),
    "entropy": (True, lambda known: -known.signals.root_entropy),
}
BEFORE_DRAFTING = tuple(_BEFORE)
"""Scores that need no draft."""


def score_by_name(name: str, depth: int) -> Score:
    """
    Args:
        depth: of the deepest greedy path that is drafted; no score looks deeper.

    Raises:
        BadInput: there is no such score.
    """
    if name in _BEFORE:
        reads_root, value = _BEFORE[name]
        return Score(name, 0, reads_root, value, value)
    of: Callable[[Known], float]
    least: Callable[[Known], float]
    bare = name.removeprefix("p0")
    is_weighted = bare != name
    kind, last = bare[:1], bare[1:]
    wanted = depth
    if bare in ("sum_g", "sum_tree"):
        of, least = _most_of_sum(depth), _sum
    elif kind in ("g", "c") and last.isdecimal() and 1 <= int(last) <= MAX_DEPTH:
        wanted = min(int(last), depth)
        bounds = _BOUNDS[kind]
        of, least = bounds[0](wanted), bounds[1](wanted)
    else:
        raise BadInput(
            f"unknown score {name!r}; known: {', '.join(BEFORE_DRAFTING)}, cD, gD, sum_g,"
            " sum_tree, and all but the first three behind p0"
        )
    if is_weighted:
        of, least = _weighted(of), _weighted(least)
    return Score(name, wanted, is_weighted, of, least)


def score_of_draft(name: str, tree: Tree) -> Score:
    """A score by its name, of drafts of this tree."""
    return score_by_name(name, tree.depth if name.endswith("sum_tree") else tree.num_best)


def _most_of_product(depth: int) -> Callable[[Known], float]:
    def of(known: Known) -> float:
        # A product of probabilities never rises, nor does the sum over a level: the last one known
        # bounds those behind it.
        chain = known.chain[:depth]
        return chain[-1] if chain else 1.0

    return of


def _least_of_product(depth: int) -> Callable[[Known], float]:
    def of(known: Known) -> float:
        return known.chain[depth - 1] if len(known.chain) >= depth > 0 else 0.0

    return of


def _most_of_one(depth: int) -> Callable[[Known], float]:
    def of(known: Known) -> float:
        return _one(known.chain, depth) if len(known.chain) >= depth > 0 else 1.0

    return of


def _least_of_one(depth: int) -> Callable[[Known], float]:
    def of(known: Known) -> float:
        return _one(known.chain, depth) if len(known.chain) >= depth > 0 else 0.0

    return of


def _one(chain: Sequence[float], depth: int) -> float:
    """The last factor of a product."""
    above = chain[depth - 2] if depth > 1 else 1.0
    return chain[depth - 1] / above if above else 0.0


_BOUNDS = {
    "g": (_most_of_product, _least_of_product),
    "c": (_most_of_one, _least_of_one),
}


def _most_of_sum(depth: int) -> Callable[[Known], float]:
    def of(known: Known) -> float:
        last = known.chain[-1] if known.chain else 1.0
        return sum(known.chain) + last * max(0, depth - len(known.chain))

    return of


def _sum(known: Known) -> float:
    return sum(known.chain)


def _weighted(of: Callable[[Known], float]) -> Callable[[Known], float]:
    return lambda known: known.signals.root_probability * of(known)


class History:
    """A running mean of accepted drafts: each step counts for a share."""

    def __init__(self, start: float = 1.0, share: float = 0.3) -> None:
        """`start`: the mean before the first step."""
        self._share = share
        self.accepted = start

    def hear(self, signals: Signals) -> None:
        """Take in what a sequence's last step accepted; its first step has none."""
        if signals.num_steps:
            self.accepted += self._share * (signals.num_accepted - self.accepted)


Reader = Callable[[Sequence[float]], list[float]]
"""From log-probabilities of drafted nodes to a score's chain, as deep as they are known."""


def reader_of(score: Score, tree: Tree) -> Reader:
    """How a score's chain is read from the log-probabilities of `tree`, or of its first levels."""
    if score.name.endswith("sum_tree"):
        return _level_reader(tree)
    nodes = greedy_nodes(tree)[: score.depth]

    def read(log_probs: Sequence[float]) -> list[float]:
        chain = []
        total = 0.0
        for node in nodes:
            if node >= len(log_probs):
                break
            total += log_probs[node]
            chain.append(math.exp(total))
        return chain

    return read


def _level_reader(tree: Tree) -> Reader:
    parents = tree.parents
    ends = [tree.depths.index(depth) for depth in range(1, tree.depth + 1)] + [tree.num_nodes]

    def read(log_probs: Sequence[float]) -> list[float]:
        values = [1.0]
        for parent, log_prob in zip(parents[1:], log_probs[1:], strict=False):
            values.append(values[parent] * math.exp(log_prob))
        return [sum(values[first:end]) for first, end in pairwise(ends) if end <= len(values)]

    return read


def greedy_nodes(tree: Tree) -> tuple[int, ...]:
    """Ids of the nodes (0,), (0, 0), … of a tree."""
    return tuple(tree.depths.index(depth) for depth in range(1, tree.num_best + 1))
