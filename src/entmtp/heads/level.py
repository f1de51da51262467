"""Filling one level of a draft tree: the best children of each open node, laid into their slots.

Knows: logits, ranks, the draft vocabulary, and the slots of a level. Does not know: which heads
made the logits.

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

    ids: torch.Tensor
    """`[B, P, R]` target ids."""
    log_probs: torch.Tensor
    """`[B, P, R]` float32."""


def choose(logits: torch.Tensor, num_ranks: int, draft_ids: torch.Tensor | None) -> Children:
    """The `num_ranks` best of logits `[B, P, W]`. Which of equal ones comes first is free.

    Args:
        draft_ids: `[W]` target id of each row of the output layer, where there is a map.
    """
    top = logits.topk(num_ranks, dim=-1)
    normaliser = torch.logsumexp(logits.float(), dim=-1, keepdim=True)
    ids = top.indices if draft_ids is None else draft_ids[top.indices]
    return Children(ids, top.values.float() - normaliser)


def fill_level(
    draft: Draft,
    level: Level,
    children: Children,
    *,
    shared_row: bool = False,
) -> None:
    """Lay children into the slots of their level, in place.

    Args:
        shared_row: `children` holds one row that all parents share.
    """
    places = level.ranks
    if not shared_row and children.ids.shape[1] > 1:
        places = level.parent_row * children.ids.shape[2] + places
    ids = children.ids.flatten(1).gather(1, places)
    draft.wide_ids.scatter_(1, level.slots, ids)
    draft.wide_log_probs.scatter_(1, level.slots, children.log_probs.flatten(1).gather(1, places))
