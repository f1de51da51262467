"""Walking a trace, by hand and against the plain reading of its definition."""

from __future__ import annotations

import numpy as np
import pytest

from entmtp.calibrate.trace import MISS
from entmtp.calibrate.walk import (
    accepted_at,
    halves,
    next_starts,
    num_rows_with_steps,
    row_tokens,
    take_rows,
    visited,
)
from entmtp.errors import BadInput
from entmtp.trees import ROOT, Tree, medusa_63
from made_traces import by_chance, by_hand


def test_a_row_is_walked_as_decoding_would() -> None:
    # Answer tokens 0 … 5. The second row is sure, but its last token is never a draft.
    trace = by_hand(
        [[0, 1], [9, 9], [9, 9], [1, 0], [0, MISS], [MISS, MISS]],
        [[0, 0], [0, 0], [0, MISS], [MISS, MISS]],
        [[MISS, MISS]],
    )
    accepted = accepted_at(trace, Tree.from_paths([(0,), (0, 1), (0, 0)]))
    assert accepted.tolist() == [2, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0]
    assert visited(trace, accepted).tolist() == [0, 3, 4, 6]
    assert row_tokens(trace).tolist() == [5, 3, 0]


@pytest.mark.parametrize("tree", [ROOT, medusa_63(), Tree.from_paths([(2,), (2, 5), (0,)])])
def test_accepted_is_the_longest_path_that_the_tree_has(tree: Tree) -> None:
    trace = by_chance(num_rows=3, length=20)
    accepted = accepted_at(trace, tree)
    for row in trace.rows():
        for start in range(row.start, row.stop):
            most = max(0, row.stop - start - 2)
            future = tuple(trace.ranks[start].tolist())[:most]
            longest = max(d for d in range(len(future) + 1) if future[:d] in tree.paths)
            assert accepted[start] == longest


def test_the_steps_of_a_row_emit_its_tokens() -> None:
    trace = by_chance()
    accepted = accepted_at(trace, medusa_63())
    starts = visited(trace, accepted)
    assert (accepted[starts] + 1).sum() == row_tokens(trace).sum()
    assert (next_starts(trace, accepted) <= len(trace.ranks)).all()


def test_halves_share_every_kind_and_no_row() -> None:
    trace = by_chance(num_rows=10, length=7)
    one, other = halves(trace, seed=3)
    assert one.kinds.count("code") + other.kinds.count("code") == 5
    assert abs(one.kinds.count("code") - other.kinds.count("code")) == 1
    together = {row.tobytes() for half in (one, other) for row in half.log_probs}
    assert together == {row.tobytes() for row in trace.log_probs}
    assert len(one.ranks) + len(other.ranks) == len(trace.ranks)
    with pytest.raises(BadInput, match="at least 2"):
        halves(take_rows(trace, [0]))


@pytest.mark.parametrize("seed", range(8))
def test_halves_share_the_rows_with_a_step(seed: int) -> None:
    step, none = [[0, 1], [MISS, MISS]], [[MISS, MISS]]
    trace = by_hand(step, none, none, step, none, none, kinds=("a", "a", "b", "b", "b", "c"))
    assert num_rows_with_steps(trace) == 2
    for half in halves(trace, seed):
        assert half.num_rows == 3
        assert num_rows_with_steps(half) == 1
    with pytest.raises(BadInput, match="1 of 3 answers have a second token"):
        halves(take_rows(trace, [0, 1, 2]), seed)


def test_rows_are_taken_whole_and_in_order() -> None:
    trace = by_hand([[0, 1], [2, 3]], [[4, MISS]], [[5, 6], [7, 8]])
    part = take_rows(trace, [2, 1])
    assert part.ranks.tolist() == [[5, 6], [7, 8], [4, MISS]]
    assert part.row_starts.tolist() == [0, 2, 3]
    assert np.array_equal(part.prompt_lengths, [7, 7])
