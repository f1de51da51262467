"""Masks of a step against their definition, row by row."""

from __future__ import annotations

import pytest
import torch

from entmtp.target.masks import causal_among, step_mask
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
