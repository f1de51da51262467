"""Monotone tables: bins of a number, and levels that never fall from one bin to the next.

Knows: numbers. Does not know: what they stand for.

Dimension key: N observations · B bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def quantile_edges(
    values: Floats, num_bins: int, weights: Floats | None = None
) -> tuple[float, ...]:
    """Up to `num_bins - 1` strictly rising borders of bins of about equally many `values`.

    A value equal to a border belongs to the bin above it. Every border is one of the values, and
    none is so low that nothing lies below it.

    Args:
        weights: of equal weight, then, not of equal number.
    """
    if len(values) == 0:
        return ()
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(np.ones(len(values)) if weights is None else weights[order])
    places = np.searchsorted(sums, sums[-1] * np.arange(1, num_bins) / num_bins)
    edges = np.unique(values[order][places])
    return tuple(edges[edges > values.min()].tolist())


def bins_of(values: Floats, edges: Sequence[float]) -> NDArray[np.int64]:
    """The bin `[N]` of each value: how many borders it reaches."""
    places: NDArray[np.int64] = np.searchsorted(np.asarray(edges), values, side="right")
    return places


def rising(levels: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-falling levels nearest to `levels` in weighted squares.

    Pool adjacent violators: neighbours in the wrong order share their weighted mean.
    """
    pools: list[tuple[float, float, int]] = []  # mean, weight, how many levels
    for level, weight in zip(levels, weights, strict=True):
        pools.append((level, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (low, w, n), (high, v, m) = pools[-2:]
            total = w + v
            mean = (w * low + v * high) / total if total else (low + high) / 2
            pools[-2:] = [(mean, total, n + m)]
    return [mean for mean, _, count in pools for _ in range(count)]


def rising_means(bins: NDArray[np.int64], values: Floats, num_bins: int) -> list[float]:
    """The mean of `values` in each bin, made non-falling; an empty bin says what its pool says."""
    weights = np.bincount(bins, minlength=num_bins).astype(np.float64)
    sums = np.bincount(bins, weights=values, minlength=num_bins)
    overall = float(values.mean()) if len(values) else 0.0
    means = np.divide(sums, weights, out=np.full(num_bins, overall), where=weights > 0)
    return rising(means.tolist(), weights.tolist())
