"""Bins and rising levels, by hand and by their definition."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from entmtp.calibrate.monotone import bins_of, quantile_edges, rising, rising_means


def test_neighbours_in_the_wrong_order_share_their_mean() -> None:
    assert rising([1.0, 3.0, 2.0, 4.0], [1, 1, 3, 1]) == [1.0, 2.25, 2.25, 4.0]
    assert rising([3.0, 2.0, 1.0], [1, 1, 1]) == [2.0, 2.0, 2.0]
    assert rising([], []) == []


def test_no_other_rising_levels_are_nearer() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        levels, weights = generator.normal(size=6), generator.uniform(0.1, 2, 6)
        fitted = np.array(rising(levels.tolist(), weights.tolist()))
        assert all(one <= other for one, other in pairwise(fitted))
        distance = (weights * (fitted - levels) ** 2).sum()
        for _ in range(50):
            other = np.sort(fitted + generator.normal(size=6) * 0.3)
            assert (weights * (other - levels) ** 2).sum() >= distance


def test_bins_hold_about_equally_many_and_none_is_empty() -> None:
    values = np.random.default_rng(1).exponential(size=1000)
    edges = quantile_edges(values, 8)
    assert len(edges) == 7
    assert np.bincount(bins_of(values, edges)).min() > 110
    lumps = np.array([0.0] * 50 + [1.0] * 50)
    assert quantile_edges(lumps, 8) == (1.0,)
    assert bins_of(np.array([0.5, 1.0]), (1.0,)).tolist() == [0, 1]
    assert quantile_edges(np.zeros(5), 8) == quantile_edges(np.zeros(0), 8) == ()


def test_an_empty_bin_says_what_its_pool_says() -> None:
    means = rising_means(np.array([0, 0, 2]), np.array([1.0, 3.0, 5.0]), 3)
    assert means[0] == pytest.approx(2.0)
    assert means[0] <= means[1] <= means[2] == pytest.approx(5.0)
