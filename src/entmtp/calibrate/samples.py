"""What single timed steps come to: medians with quartiles, of steps, of switches, of looks.

Knows: samples of steps. Does not know: engines, who took them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.latency_table import Looks, Spread, TimedSwitch, TimedTree
from entmtp.trees import Tree


class Sample(NamedTuple):
    """One step behind another of as many rows."""

    tree: Tree
    context: int
    """As asked for"""
    length: float
    """As it was"""
    num_accepted: float
    draft: float
    verify: float
    host: float

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.host


class Switch(NamedTuple):
    """One step behind another of another number of rows."""

    context: int
    """As asked for"""
    length: float
    """As it was"""
    seconds: float
    """More than the median of the steps of its block that follow"""

    @classmethod
    def of(cls, switch: Sample, block: Sequence[Sample]) -> Switch:
        usual = float(np.median([one.total for one in block]))
        return cls(switch.context, switch.length, switch.total - usual)


@dataclass(frozen=True)
class Seen:
    """What all visits came to."""

    samples: list[Sample] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)

    def entries(self) -> Iterator[TimedTree]:
        for (_, tree), group in _by_place(self.samples).items():
            yield TimedTree(
                tree=tree,
                context=round(float(np.mean([one.length for one in group])), 1),
                num_samples=len(group),
                num_accepted=round(float(np.mean([one.num_accepted for one in group])), 3),
                draft=_spread([one.draft for one in group]),
                verify=_spread([one.verify for one in group]),
                host=_spread([one.host for one in group]),
            )

    def timed_switches(self) -> Iterator[TimedSwitch]:
        groups: dict[int, list[Switch]] = defaultdict(list)
        for switch in self.switches:
            groups[switch.context].append(switch)
        for group in groups.values():
            length = round(float(np.mean([one.length for one in group])), 1)
            yield TimedSwitch(length, len(group), _spread([one.seconds for one in group]))

    def accepted_seconds(self) -> float:
        """Least squares through the medians of each count, within each tree and context.

        Never negative; 0 where all steps accept alike.
        """
        covariance = variance = 0.0
        for group in _by_place(self.samples).values():
            times: dict[float, list[float]] = defaultdict(list)
            for one in group:
                times[one.num_accepted].append(one.total)
            counts = np.array(list(times))
            medians = np.array([np.median(each) for each in times.values()])
            weights = np.array([len(each) for each in times.values()])
            apart = counts - np.average(counts, weights=weights)
            covariance += float((weights * apart) @ medians)
            variance += float((weights * apart) @ apart)
        return max(0.0, covariance / variance) if variance else 0.0


def looks_of(seconds: Mapping[str, Sequence[float]]) -> Looks:
    """From the host's part of steps that look at `nothing`, at the `root`, at the `draft`."""
    nothing, root, draft = (float(np.median(seconds[way])) for way in ("nothing", "root", "draft"))
    return Looks(round(root - nothing, 7), round(draft - nothing, 7))


def _by_place(samples: Sequence[Sample]) -> dict[tuple[int, Tree], list[Sample]]:
    groups: dict[tuple[int, Tree], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample.context, sample.tree].append(sample)
    return groups


def _spread(seconds: Sequence[float]) -> Spread:
    return Spread(*(round(float(each), 7) for each in np.quantile(seconds, (0.25, 0.5, 0.75))))
