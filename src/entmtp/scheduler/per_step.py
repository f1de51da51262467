"""A tree made for the step: of all that was drafted, the nodes that are worth their rows.

Knows: a wide tree, how the acceptance of a node depends on its head's word, step times. Does not
know: models, tokens.

A node's value is the probability that it is accepted: the product, along its path, of calibrated
acceptances given the parent. A child is never worth more than its parent, so the most valuable
nodes of any number are a tree; how many are taken is where the next ones bring less than their
rows cost (METHOD §6.4; OPT-Tree's choice with a price).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from entmtp.errors import BadInput
from entmtp.scheduler.acceptance import StepFunction, check_depths
from entmtp.scheduler.adapting import Adaptation
from entmtp.scheduler.base import Bid, DraftSignals, Selection, Signals
from entmtp.scheduler.costed import LEAST, Costed, CostedPolicy
from entmtp.scheduler.times import Times
from entmtp.trees import ROOT, Part, Tree

DEFAULT_SIZES = (1, 4, 8, 12, 16, 24, 32, 64)
"""Rows: as many as a runtime keeps compiled copies."""


class PerStepPolicy(CostedPolicy):
    """Maximises `E[accepted] - rate · t` over the parts of one wide tree."""

    name = "per-step"

    def __init__(
        self,
        tree: Tree,
        acceptance: Sequence[StepFunction],
        reach: Sequence[float],
        times: Times,
        rate: float,
        *,
        sizes: Sequence[int] = DEFAULT_SIZES,
        stops: bool = True,
        adaptation: Adaptation | None = None,
    ) -> None:
        """
        Args:
            tree: all that may be drafted.
            acceptance: of each depth from 1 on, P(node accepted | parent accepted) by the natural
                log-probability that the head gives the node.
            reach: of each depth from 1 on, P(a node of the wide tree is accepted | one of the depth
                above is): what is expected before a level is drafted.
            times: seconds of steps.
            rate: tokens a second, as calibrated.
            sizes: rows to choose from, the root's included; 1 is always among them, and 2 if there
                is nothing else: who never drafts learns nothing.
            stops: ask between levels; useless where all levels come out of one product.

        Raises:
            BadInput: lengths do not fit, or an acceptance is above 1.
        """
        if not tree.depth or not sizes or min(sizes) < 1:
            raise BadInput("per-step needs a tree that drafts, and sizes from 1 up")
        adaptation = adaptation or Adaptation()
        super().__init__((tree,), times, rate, adaptation, tree.depth, adaptation.depth_prior)
        check_depths("acceptance", acceptance, tree.depth)
        check_depths("reach", reach, tree.depth)
        if max(*reach, *(table.levels[-1] for table in acceptance)) > 1 or min(reach) < 0:
            raise BadInput("acceptance and reach are probabilities; give numbers from 0 to 1")
        self.acceptance = tuple(acceptance)
        self.reach = tuple(reach)
        most = tree.num_nodes
        fitting = {1, *(min(size, most) for size in sizes)}
        self.sizes = tuple(sorted(fitting)) if len(fitting) > 1 else (1, LEAST.num_nodes)
        self.stops = stops

    @property
    def num_rows(self) -> frozenset[int]:
        return frozenset((*self.sizes, LEAST.num_nodes))

    def begin(self, seed: int) -> Selection:
        return _PerStep(self)


class _PerStep(Costed):
    reads_draft = True

    def __init__(self, policy: PerStepPolicy) -> None:
        super().__init__(policy)
        self._tree = tree = policy.trees[-1]
        self._acceptance = policy.acceptance
        self._reach = policy.reach
        self._sizes = policy.sizes
        self.stops_draft = policy.stops
        depths = tree.depths
        self._ends = [*(depths.index(d) for d in range(1, tree.depth + 1)), tree.num_nodes]
        """Where each depth's nodes begin, from 1 on, and where the last ones end"""
        parents = set(tree.parents[1:])
        self._inner = [
            [node for node in range(*bounds) if node in parents] for bounds in pairwise(self._ends)
        ]
        self._values = [1.0]
        """Of the nodes drafted so far in this step"""
        self._ranked: list[float] = []
        """Those without the root's, best first"""
        self._gains: Sequence[float] = (0.0,)
        """The sum of the first 0, 1, … of these"""
        self._factors: Sequence[float] = ()
        self._reached: Sequence[float] = ()
        """Reach of each level, corrected by these factors"""
        self._promised: list[float] = []
        """Of each depth verified: P(accepted | the one above is), as the tables have it"""

    def learn(self, num_accepted: int) -> None:
        """By depth, given that the depth above was accepted; of deeper ones nothing is known."""
        if not self._promised:  # a probe
            return
        most = min(len(self._promised), num_accepted + 1)
        real = [1.0] * num_accepted + [0.0]
        self._learnt.correction.hear(range(most), self._promised[:most], real[:most])
        self._promised = []

    def widest(self, signals: Signals) -> Tree:
        self.hear(signals)
        self._values, self._ranked, self._gains = [1.0], [], (0.0,)
        value, best, price = 1.0, float("-inf"), self._price(1)
        rate = self._learnt.rate.value
        gain = 0.0
        draft = self.prices.draft
        for depth, step in enumerate(self._corrected(), start=1):
            value *= step
            gain += value - price
            if (net := gain - rate * draft[depth]) > best:
                best = net
        best += rate * self.spared()
        if self.is_worth_drafting(best):
            return LEAST if self.is_least else self._tree
        self.promise(float("nan"), 0.0, 1)
        return ROOT

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        """Go on if some number of further levels is worth its time.

        A level is expected to bring each node's value times the reach, less what the nodes that
        it displaces, or the rows that it adds, are worth.
        """
        depth = draft.tree.depth
        self._value(draft)
        price = self._price(self._best_size())
        frontier = [self._values[node] for node in self._inner[depth - 1]]
        levels, rate = self.prices.draft, self._learnt.rate.value
        reached = self._corrected()
        share, gain = 1.0, 0.0
        for further in range(depth + 1, self._tree.depth + 1):
            share *= reached[further - 1]
            gain += sum([worth - price for value in frontier if (worth := value * share) > price])
            if gain > rate * (levels[further] - levels[depth]):
                return True
        return False

    def bid(self, signals: Signals, draft: DraftSignals) -> Bid:
        if self.is_least:
            return self.bid_to_probe()
        self._value(draft)
        return self.bid_for(self._gains)

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree | Part:
        if self.is_least:
            return self.choose_to_probe(draft)
        self._value(draft)
        room = draft.room
        kept = self._best(self._best_size() if room is None else room.num_slots)
        self._depth = draft.tree.depth
        self.promise(float("nan"), self._expect(kept), len(kept), room)
        return Part(draft.tree, tuple(kept))

    def _value(self, draft: DraftSignals) -> None:
        """Value the nodes that have been drafted since the last question."""
        values, parents, log_probs = self._values, self._tree.parents, draft.log_probs
        for depth in range(draft.tree.depth):
            factor = self._learnt.correction.factors[depth]
            first, end = self._ends[depth], self._ends[depth + 1]
            if first < len(values):
                continue
            edges, levels = self._acceptance[depth].edges, self._acceptance[depth].levels
            # A factor may not lift a child over its parent.
            values += [
                values[parent] * given
                if (given := factor * levels[bisect_right(edges, log_prob)]) < 1.0
                else values[parent]
                for parent, log_prob in zip(parents[first:end], log_probs[first:end], strict=True)
            ]
        if len(values) > len(self._gains):
            self._ranked = sorted(values[1:], reverse=True)
            self._gains = tuple(accumulate(self._ranked, initial=0.0))

    def _best(self, size: int) -> list[int]:
        """Ids of the `size` most valuable nodes, the root's among them, or of all; ascending."""
        values = self._values
        if size > len(self._ranked):
            return list(range(len(values)))
        if size < 2:
            return [0]
        least = self._ranked[size - 2]
        kept = [node for node, value in enumerate(values) if value >= least]
        while len(kept) > size:  # of equal ones the parent stays, whose id is smaller
            kept.remove(max(node for node in kept if values[node] == least))
        return kept

    def _best_size(self) -> int:
        """Rows, the root's included, at which value less the price of rows is largest."""
        verify, rate, gains = self.verify, self._learnt.rate.value, self._gains
        most = len(gains)
        best, best_net = 1, float("-inf") if self.is_probe else -rate * verify[1]
        # A short draft is taken whole, whether or not that is one of the sizes.
        for size in [size for size in self._sizes[1:] if size <= most] or (most,):
            net = gains[size - 1] - rate * verify[size]
            if net > best_net:
                best, best_net = size, net
        return best

    def _price(self, size: int) -> float:
        """What one more node must bring: the cost of its row, or the value of a node in its place.

        A row is not charged for the switch that the whole size may be.

        Args:
            size: rows that would be kept now.
        """
        verify = self.prices.verify
        place = bisect_right(self._sizes, size)
        replaced = self._ranked[size - 2] if size > 1 else float("inf")
        if place == len(self._sizes):
            return replaced
        larger = self._sizes[place]
        row = (verify[larger] - verify[size]) / (larger - size)
        return min(self._learnt.rate.value * row, replaced)

    def _corrected(self) -> Sequence[float]:
        """Corrected reach of each level."""
        factors = self._learnt.correction.factors
        if factors is not self._factors:  # learnt since, by whichever sequence
            self._factors = factors
            self._reached = [
                step if (step := reach * factor) < 1.0 else 1.0
                for reach, factor in zip(self._reach, factors, strict=False)
            ]
        return self._reached

    def _expect(self, kept: Sequence[int]) -> float:
        """Value of what is verified; by depth it is what the correction learns from."""
        depths, values = self._tree.depths, self._values
        mass = [0.0] * (depths[kept[-1]] + 1)
        for node in kept:
            mass[depths[node]] += values[node]
        factors = self._learnt.correction.factors
        self._promised = [
            below / (above * factor) if above else 0.0
            for above, below, factor in zip(mass, mass[1:], factors, strict=False)
        ]
        return sum(mass) - 1.0
