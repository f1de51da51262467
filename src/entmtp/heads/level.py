"""Filling one level of a draft tree: the best children of each open node, laid into their slots.

Knows: logits, ranks, and the slots of a level. Does not know: which heads made the logits.

Dimension key: B batch · T tree slots · P parents of the level · R ranks · n slots of the level ·
W draft vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from entmtp.heads.base import Draft
from entmtp.trees import Level


class Children(NamedTuple):
    """The best children of each parent, best first."""

    rows: torch.Tensor
    """`[B, P, R]` rows of the output layer."""
    log_probs: torch.Tensor
    """`[B, P, R]` float32."""


def choose(logits: torch.Tensor, num_ranks: int) -> Children:
    """The `num_ranks` best of logits `[B, P, W]`. Which of equal ones comes first is free."""
    top = logits.topk(num_ranks, dim=-1)
    normaliser = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    return Children(top.indices, top.values.float() - normaliser)


def fill_level(
    draft: Draft,
    level: Level,
    children: Children,
    draft_ids: torch.Tensor | None,
    *,
    shared_row: bool = False,
) -> None:
    """Lay children into the slots of their level, in place.

    Args:
        shared_row: `children` holds one row that all parents share.
    """
    num_ranks = children.rows.shape[-1]
    places = level.ranks if shared_row else level.parent_row * num_ranks + level.ranks
    ids = children.rows.flatten(1).gather(1, places)
    if draft_ids is not None:
        ids = draft_ids[ids]
    draft.wide_ids.scatter_(1, level.slots, ids)
    draft.wide_log_probs.scatter_(1, level.slots, children.log_probs.flatten(1).gather(1, places))
