"""Means and medians of ratios and how sure they are. Knows: numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A geometric mean or a median with its 95 % interval; None where too little is known."""

    middle: float | None
    low: float | None
    high: float | None


def geometric_mean_interval(ratios: Sequence[float]) -> Interval:
    """Geometric mean of positive ratios; Student's t interval of their logarithms."""
    logs = [math.log(ratio) for ratio in ratios]
    count = len(logs)
    if count == 0:
        return Interval(None, None, None)
    mean = math.fsum(logs) / count
    if count == 1:
        return Interval(math.exp(mean), None, None)
    variance = math.fsum((value - mean) ** 2 for value in logs) / (count - 1)
    half = student_quantile(count - 1) * math.sqrt(variance / count)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


def median_interval(ratios: Sequence[float]) -> Interval:
    """Median of ratios and the interval of two of them, whatever their distribution.

    Each ratio is above the true median with chance 1/2, so the k-th smallest and the k-th largest
    enclose it with chance 1 - 2·P(Binomial(n, 1/2) < k). The largest k with 95 % or more is
    taken; fewer than six ratios have none.
    """
    if not ratios:
        return Interval(None, None, None)
    ordered = sorted(ratios)
    count = len(ordered)
    outside, places = 0.0, 0
    while places < count:
        outside += 2 * math.comb(count, places) / 2**count
        if outside > 1 - CONFIDENCE:
            break
        places += 1
    middle = statistics.median(ordered)
    if places == 0:
        return Interval(middle, None, None)
    return Interval(middle, ordered[places - 1], ordered[count - places])


def student_quantile(degrees: int, confidence: float = CONFIDENCE) -> float:
    """The t with P(|T| < t) = `confidence`."""
    low, high = 0.0, 1.0
    while _within(high, degrees) < confidence:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        if _within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


def _within(t: float, degrees: int) -> float:
    """P(|T| < t) for whole degrees of freedom, as a finite sum (Abramowitz and Stegun, 26.7)."""
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine_squared = math.sin(angle), math.cos(angle) ** 2
    is_odd = degrees % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for k in range(2 if is_odd else 1, degrees, 2):
        total += term
        term *= cosine_squared * k / (k + 1)
    return 2 / math.pi * (angle + sine * total) if is_odd else sine * total
