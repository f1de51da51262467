"""Intervals against published tables."""

from __future__ import annotations

import pytest

from entmtp.measure.statistics import geometric_mean_interval, median_interval, student_quantile


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


@pytest.mark.parametrize(
    ("count", "place"),
    # How many ratios lie outside on each side: published tables of the sign test's interval.
    [(6, 1), (7, 1), (8, 1), (9, 2), (10, 2), (12, 3), (15, 4), (20, 6), (25, 8), (60, 22)],
)
def test_median_between_two_of_the_ratios(count: int, place: int) -> None:
    ratios = [1.0 + index / 100 for index in range(count)]
    middle, low, high = median_interval(ratios[::-1])
    assert middle == pytest.approx(1 + (count - 1) / 200)
    assert (low, high) == (ratios[place - 1], ratios[-place])


def test_P09_a_median_of_few_has_no_interval() -> None:
    assert median_interval([]) == (None, None, None)
    for count in (1, 5):
        assert median_interval([1.5] * count) == (1.5, None, None)


def test_P09_too_few_ratios_are_none() -> None:
    assert geometric_mean_interval([]) == (None, None, None)
    mean, *rest = geometric_mean_interval([3.0])
    assert mean == pytest.approx(3.0)
    assert rest == [None, None]
