"""Masks of a step against their definition, row by row."""

from __future__ import annotations

import pytest
import torch

from entmtp.target.masks import causal_among, sliding_mask, step_mask
from entmtp.trees import Tree, chain, full, tree_buffers

CPU = torch.device("cpu")
TREES = (full(2, 2), chain(3), Tree.from_paths([(1,), (1, 0), (3,)]))


@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 2, 9], [0, 0, 0], [0, 7, 1]])
def test_rows_see_their_prefix_and_their_ancestors(lengths: list[int]) -> None:
    among = tree_buffers(TREES, CPU).mask
    rows, longest = among.shape[1], max(lengths)
    mask = step_mask(lengths, among)
    assert mask is not None
    assert mask.shape == (3, 1, rows, longest + rows)
    for row, length in enumerate(lengths):
        expected = torch.zeros(rows, longest + rows, dtype=torch.bool)
        expected[:, :length] = True
        expected[:, length : length + rows] = among[row]
        assert torch.equal(mask[row, 0], expected)


def test_no_mask_where_everything_is_visible() -> None:
    one = torch.ones(2, 1, 1, dtype=torch.bool)
    assert step_mask([4, 4], one) is None
    assert step_mask([4, 3], one) is not None


def test_causal() -> None:
    among = causal_among(2, 4, CPU)
    assert torch.equal(among, torch.ones(2, 4, 4, dtype=torch.bool).tril())


@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 2, 9], [0, 0, 0], [0, 7, 1]])
@pytest.mark.parametrize("window", [1, 2, 4, 9])
def test_a_window_is_counted_in_positions(lengths: list[int], window: int) -> None:
    buffers = tree_buffers(TREES, CPU)
    among, rows = buffers.mask, buffers.mask.shape[1]
    positions = torch.tensor(lengths)[:, None] + buffers.depths
    whole = step_mask(lengths, among)
    mask = sliding_mask(whole, lengths, positions, window)
    assert whole is not None
    assert mask is not None
    for batch, length in enumerate(lengths):
        # Behind the committed text lie the new rows, at the positions of their depths.
        keys = [*range(length), *positions[batch].tolist()]
        for row in range(rows):
            query = int(positions[batch, row])
            for slot, key in enumerate(keys):
                seen = bool(whole[batch, 0, row, slot]) and key > query - window
                assert bool(mask[batch, 0, row, slot]) == seen


def test_a_window_that_reaches_everything_costs_nothing() -> None:
    among = tree_buffers(TREES, CPU).mask
    positions = 4 + tree_buffers(TREES, CPU).depths
    whole = step_mask([4, 4, 4], among)
    assert sliding_mask(whole, [4, 4, 4], positions, 4 + among.shape[1]) is whole
    # One row without a mask gets one when the text outgrows the window.
    one = torch.full((2, 1), 9)
    assert sliding_mask(None, [9, 9], one, 10) is None
    mask = sliding_mask(None, [9, 9], one, 3)
    assert mask is not None
    assert mask[0, 0, 0].tolist() == 7 * [False] + 3 * [True]
