"""Ranks of true tokens: by counting, the slow way."""

from __future__ import annotations

import pytest
import torch

from entmtp.heads import DraftHeads, HeadsConfig, build_heads
from entmtp.heads.forced import LabelMap, ranks_of
from entmtp.trees.replay import MAX_RANK, MISS

V, W, H = 300, 200, 8


def heads(dtype: torch.dtype) -> DraftHeads:
    made = build_heads(HeadsConfig("medusa", H, V, 2, 1, W, "own"))
    generator = torch.Generator().manual_seed(0)
    for weight in made.parameters():
        weight.data.normal_(0.0, 1.0, generator=generator)
    assert made.draft_ids is not None
    made.draft_ids.copy_(torch.arange(W) + 50)
    return made.to(dtype).requires_grad_(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ranks_are_how_many_are_likelier(dtype: torch.dtype) -> None:
    own = heads(dtype)
    features = torch.randn(600, H, generator=torch.Generator().manual_seed(1)).to(dtype)
    ids = torch.arange(600) % V
    rows = LabelMap(own).rows(ids)
    assert ((rows >= 0) == ((ids >= 50) & (ids < 250))).all()
    ranks = ranks_of(own, 1, features, rows)
    assert (ranks[rows < 0] == MISS).all()
    seen = set()
    for place in (rows >= 0).nonzero().flatten().tolist():
        logits = own.logits(1, features[place])
        score, rank = logits[rows[place]], int(ranks[place])
        # Equal logits may stand in any order.
        better, as_good = int((logits > score).sum()), int((logits >= score).sum())
        assert better <= rank < as_good or (rank == MAX_RANK and better <= MAX_RANK)
        seen.add(rank)
    assert min(seen) == 0
    assert max(seen) > MAX_RANK


def test_no_places_have_no_ranks() -> None:
    nothing = torch.zeros(0, dtype=torch.long)
    assert ranks_of(heads(torch.float32), 0, torch.zeros(0, H), nothing).numel() == 0
