"""Ranks of true tokens, against counting which tokens are likelier."""

from __future__ import annotations

import pytest
import torch

from draft_heads import KINDS
from entmtp.calibrate.answers import Group, answer_group
from entmtp.calibrate.ranks import see, true_ranks
from entmtp.heads import DraftHeads, HeadsConfig, build_heads, inverse_map, prefix_shape
from entmtp.trees.replay import MAX_RANK, MISS
from rank_traces import ANSWERS, questions, talker

V, W = 258, 200
NUM_HEADS = 3


def heads(kind: str) -> DraftHeads:
    """Random ones, that know the ids from 50 to 249."""
    prefix = prefix_shape(talker()) if kind == "hydra++" else None
    made = build_heads(HeadsConfig(kind, 64, V, NUM_HEADS, 1, W, "own", prefix))
    generator = torch.Generator().manual_seed(0)
    for weight in made.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    assert made.draft_ids is not None
    made.draft_ids.copy_(torch.arange(W) + 50)
    made.bind(talker())
    return made.eval().requires_grad_(False)


def counted(own: DraftHeads, group: Group) -> list[list[int]]:
    """`[N][K]`, one place at a time."""
    rows = inverse_map(own.draft_ids, V)
    found = []
    for row, prompt in group.rows():
        ids, context = group.token_ids[row], own.context(group.hidden[row][None])[0]
        for root in range(prompt, len(ids)):
            ranks = []
            for head in range(NUM_HEADS):
                label = root + head + 1
                if label >= len(ids) or (true := int(rows[ids[label]])) < 0:
                    ranks.append(MISS)
                    continue
                path = own.embed(ids[root:label]).flatten() if own.needs_path else None
                logits = own.logits(head, own.features(head, context[root - 1], path))
                rank = int((logits > logits[true]).sum())
                ranks.append(rank if rank < MAX_RANK else MISS)
            found.append(ranks)
    return found


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_rank_is_how_many_are_likelier(kind: str) -> None:
    own = heads(kind)
    group = answer_group(talker(), questions(talker())[:4], ANSWERS, lambda count: None)
    ranks = true_ranks(own, see(own, group))
    assert ranks.tolist() == counted(own, group)
    known = ranks[ranks != MISS]
    assert 0.1 < known.numel() / ranks.numel() < 0.9
    assert known.max() > 20
