"""How many nodes of a tree made for the step to verify, as options with times.

Knows: traces, times, what nodes are worth. Does not know: banks, how values were fitted.

All levels are drafted before the choice, whatever its size; a draft that stops early is in
`stopping.py`.

Dimension key: N starts · O sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.chooser import NodeValues
from entmtp.calibrate.fit import settle
from entmtp.calibrate.latency import StepTimes
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.options import Options
from entmtp.calibrate.perstep import accepted_with, fit_node_values, true_places, worths
from entmtp.calibrate.trace import RankTrace

MAX_NODES = 64


class Sized(NamedTuple):
    """Sizes to choose from at each start."""

    options: Options
    expected: Floats  # [N, O] the sum of what the nodes verified are worth


def size_options(
    trace: RankTrace,
    times: StepTimes,
    worth: Floats,
    sizes: Sequence[int] = range(1, MAX_NODES + 1),
    depth: int | None = None,
) -> Sized:
    """Every size, the root included, as far as the wide tree has nodes.

    Args:
        depth: levels drafted; all of the wide tree by default.
    """
    whole = trace.wide_tree
    wide = whole if depth is None else whole.truncate(depth)
    drafts = [size - 1 for size in sizes if size <= wide.num_nodes]
    places = true_places(trace, worth, wide.depth)
    accepted = np.stack([accepted_with(places, num) for num in drafts], axis=1)
    seconds = np.array([times.step(num + 1, wide.depth) for num in drafts])
    best_first = -np.sort(-worth[:, 1 : wide.num_nodes], axis=1)
    sums = np.concatenate([np.zeros((len(worth), 1)), np.cumsum(best_first, axis=1)], axis=1)
    return Sized(Options.of(trace, accepted, seconds), sums[:, drafts])


def fit_per_step(trace: RankTrace, times: StepTimes) -> NodeValues:
    """Node values, and the rate that choosing each step's size by them reaches."""
    values = fit_node_values(trace)
    sized = size_options(trace, times, worths(trace, values))
    return replace(values, tokens_per_second=settle(*sized).tokens_per_second)
