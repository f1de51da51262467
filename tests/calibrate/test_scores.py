"""Scores say what their names say."""

from __future__ import annotations

import numpy as np
import pytest

from entmtp.calibrate.scores import acceptance_average, scores, tree_score
from entmtp.calibrate.walk import accepted_at
from entmtp.trees import Tree, chain
from made_traces import by_chance, by_hand


def test_scores_are_products_along_the_greedy_path() -> None:
    trace = by_chance(num_rows=2, length=9)
    found = scores(trace)
    place = 5
    nodes = [trace.wide_tree.paths.index((0,) * depth) for depth in (1, 2, 3)]
    c1, c2, c3 = np.exp(trace.log_probs[place, nodes].astype(np.float64))
    p0 = float(trace.root_probability[place])
    assert found["c2"].values[place] == pytest.approx(c2)
    assert found["g3"].values[place] == pytest.approx(c1 * c2 * c3)
    assert found["p0g2"].values[place] == pytest.approx(p0 * c1 * c2)
    assert found["sum_g"].values[place] == pytest.approx(c1 + c1 * c2 + c1 * c2 * c3)
    assert found["entropy"].values[place] == pytest.approx(-trace.root_entropy[place])
    paths = [
        np.prod(
            [
                np.exp(trace.log_probs[place, trace.wide_tree.paths.index(path[:d])])
                for d in range(1, len(path) + 1)
            ]
        )
        for path in trace.wide_tree.paths[1:]
    ]
    assert found["sum_tree"].values[place] == pytest.approx(sum(paths), rel=1e-4)
    part = tree_score(trace, Tree.from_paths([(0,), (0, 0), (99,)]))
    assert part.values[place] == pytest.approx(c1 + c1 * c2)
    levels = {name: found[name].levels for name in ("p0", "c1", "g2", "sum_g")}
    assert levels == {"p0": 0, "c1": 1, "g2": 2, "sum_g": 3}


def test_the_average_is_what_a_run_would_know() -> None:
    trace = by_hand([[0, 0], [9, 9], [9, 9], [9, 9], [9, 9], [9, 9]], [[9, 9], [9, 9]])
    accepted = accepted_at(trace, Tree.from_paths(chain(2).paths))
    average = acceptance_average(trace, accepted, share=0.5)
    # Starts 0, 3, 4, 5 are visited; the second row begins anew.
    assert average.values[0] == average.values[6] == 1
    assert average.values[3] == pytest.approx(1.5)
    assert average.values[4] == pytest.approx(0.75)
