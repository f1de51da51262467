"""Heads on true text: what each says at a place of a whole row, given the true tokens behind it.

Knows: heads, contexts of all places of rows, ids. Does not know: the target, labels, losses, files.

Dimension key: N places · H hidden size · W draft vocabulary · V vocabulary.
"""

from __future__ import annotations

import torch

from entmtp.heads.base import DraftHeads
from entmtp.heads.vocabulary import inverse_map
from entmtp.trees.replay import MAX_RANK, MISS

CHUNK = 256
"""Places whose logits are in memory at a time."""


class LabelMap:
    """The draft vocabulary as seen from the target's ids."""

    def __init__(self, heads: DraftHeads) -> None:
        ids = None if heads.draft_ids is None else heads.draft_ids.cpu()
        self._rows = inverse_map(ids, heads.vocab_size).to(heads.device)

    def rows(self, target_ids: torch.Tensor) -> torch.Tensor:
        """Output rows of target ids; -1 outside the draft vocabulary."""
        return self._rows[target_ids]


def forced_features(
    heads: DraftHeads,
    head: int,
    context: torch.Tensor,  # [places of all rows, H]
    embeddings: torch.Tensor | None,  # likewise, of each place's token; None: no path is seen
    places: torch.Tensor,  # [N]
) -> torch.Tensor:
    """One head's features `[N, H]` at flat places, given the true tokens behind them."""
    path = None
    if embeddings is not None:
        following = places[:, None] + torch.arange(1, head + 2, device=places.device)
        path = embeddings.index_select(0, following.flatten())
        path = path.view(len(places), (head + 1) * path.shape[-1])
    return heads.features(head, context.index_select(0, places), path)


def ranks_of(
    heads: DraftHeads,
    head: int,
    features: torch.Tensor,  # [N, H]
    true_rows: torch.Tensor,  # [N] of the output layer; -1: the heads do not know the token
) -> torch.Tensor:
    """Rank `[N]` of the true token under one head; `MISS` if it is not in the draft vocabulary.

    Equal logits, of which there are many in 16 bits, are told apart as drafting does it: by the
    same `topk`.
    """
    parts = zip(features.split(CHUNK), true_rows.split(CHUNK), strict=True)
    ranks = [_ranks(heads.logits(head, part), true) for part, true in parts]
    return torch.cat(ranks) if ranks else true_rows


def _ranks(logits: torch.Tensor, true_rows: torch.Tensor) -> torch.Tensor:
    depth = min(MAX_RANK, logits.shape[-1])
    is_true = logits.topk(depth, dim=-1).indices == true_rows[:, None]
    ranks = is_true.int().argmax(-1)
    deep = (~is_true.any(-1) & (true_rows >= 0)).nonzero().flatten()
    if deep.numel():
        scores = logits[deep]
        score = scores.gather(1, true_rows[deep, None])
        ranks[deep] = (scores > score).sum(-1).clamp_min(depth)
    return torch.where(true_rows >= 0, ranks, MISS)
