"""Intervals against published tables."""

from __future__ import annotations

import pytest

from entmtp.bench.statistics import geometric_mean_interval, student_quantile


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (23, 2.069), (59, 2.001)],
)
def test_student_quantiles(degrees: int, quantile: float) -> None:
    assert student_quantile(degrees) == pytest.approx(quantile, abs=6e-4)


def test_geometric_mean_and_interval() -> None:
    mean, low, high = geometric_mean_interval([1.0, 4.0])
    assert mean == pytest.approx(2.0)
    assert low is not None
    assert high is not None
    # Half the logarithms' distance is their standard error.
    assert high / 2.0 == pytest.approx(2.0**12.706, rel=1e-2)
    assert low * high == pytest.approx(4.0)


def test_equal_ratios_leave_no_doubt() -> None:
    assert geometric_mean_interval([1.5] * 4) == pytest.approx((1.5, 1.5, 1.5))


def test_P09_too_few_ratios_are_none() -> None:
    assert geometric_mean_interval([]) == (None, None, None)
    mean, *rest = geometric_mean_interval([3.0])
    assert mean == pytest.approx(3.0)
    assert rest == [None, None]
