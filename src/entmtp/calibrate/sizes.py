"""How many nodes of a tree made for the step to verify, as options with times.

Knows: traces, times, what nodes are worth. Does not know: banks, how values were fitted.

All levels are drafted before the choice, whatever its size; a draft that stops early is in
`stopping.py`. Which sizes are worth having is asked as if switching between them were free: a
choice here does not know the step before it, as the policy will.

Dimension key: N starts · O sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from entmtp.calibrate.chooser import NodeValues
from entmtp.calibrate.fit import settle
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.options import Options
from entmtp.calibrate.perstep import accepted_with, fit_node_values, true_places, worths
from entmtp.calibrate.trace import RankTrace
from entmtp.scheduler.times import StepTimes

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
"""To choose from where only some are kept"""
MAX_SIZES = 8
"""A runtime keeps a compiled copy of each"""
MIN_GAIN = 0.001
"""What another size must bring"""


class Sized(NamedTuple):
    """Sizes to choose from at each start."""

    options: Options
    expected: Floats  # [N, O] the sum of what the nodes verified are worth


def size_options(
    trace: RankTrace,
    times: StepTimes,
    worth: Floats,
    sizes: Sequence[int] = SIZES,
    depth: int | None = None,
) -> Sized:
    """Sizes, the root included, as far as the wide tree has nodes.

    Args:
        depth: levels drafted; all of the wide tree by default.
    """
    whole = trace.wide_tree
    wide = whole if depth is None else whole.truncate(depth)
    drafts = [size - 1 for size in sizes if size <= wide.num_nodes]
    places = true_places(trace, worth, wide.depth)
    accepted = np.stack([accepted_with(places, num) for num in drafts], axis=1)
    seconds = np.array([times.step(num + 1, wide.depth) for num in drafts])
    seconds += times.look_seconds(reads_root=False, reads_draft=wide.depth > 0)
    best_first = -np.sort(-worth[:, 1 : wide.num_nodes], axis=1)
    sums = np.concatenate([np.zeros((len(worth), 1)), np.cumsum(best_first, axis=1)], axis=1)
    verified = np.array(drafts) + 1
    options = Options.of(trace, accepted, seconds, verified, times.switch_seconds)
    return Sized(options, sums[:, drafts])


def fit_per_step(trace: RankTrace, times: StepTimes) -> NodeValues:
    """Node values, sizes, and the rate that choosing among them by the values reaches."""
    values = fit_node_values(trace)
    worth = worths(trace, values)
    candidates = [size for size in SIZES if size <= trace.wide_tree.num_nodes]
    whole = size_options(trace, replace(times, switch_seconds=0.0), worth, candidates)
    chosen, best = [0], _settled(whole, [0])
    while len(chosen) < MAX_SIZES:
        rest = [place for place in range(len(candidates)) if place not in chosen]
        tried = {place: _settled(whole, sorted([*chosen, place])) for place in rest}
        better = max(tried, key=tried.__getitem__, default=None)
        if better is None or tried[better] < best * (1 + MIN_GAIN):
            break
        chosen, best = sorted([*chosen, better]), tried[better]
    sizes = tuple(candidates[place] for place in chosen)
    return replace(values, sizes=sizes, tokens_per_second=best)


def _settled(sized: Sized, places: list[int]) -> float:
    """The rate of choosing among some of the sizes."""
    options = sized.options
    part = replace(
        options,
        accepted=options.accepted[:, places],
        seconds=options.seconds[:, places],
        next_starts=options.next_starts[:, places],
        sizes=options.sizes[:, places],
    )
    return settle(part, sized.expected[:, places]).tokens_per_second
