"""Verification: one forward of the target over a batch of drafted trees.

Knows: the target's protocol and tree topology. Does not know: who drafted, what is accepted.

Dimension key: B batch · T slots · H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from entmtp.target.cache import KVCache
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainCache
from entmtp.trees import TreeBuffers


def node_positions(lengths: Sequence[int], buffers: TreeBuffers) -> torch.Tensor:
    """Positions `[B, T]` of each slot's token, the root's behind what is committed."""
    if len(lengths) == 1:
        return buffers.depths + lengths[0]
    starts = torch.tensor(lengths, device=buffers.depths.device)
    return starts[:, None] + buffers.depths


def verify(
    target: TargetModel,
    cache: KVCache | PlainCache,
    draft_ids: torch.Tensor,  # [B, T], root at slot 0
    positions: torch.Tensor,  # [B, T] as `node_positions` gives them
    buffers: TreeBuffers,
) -> torch.Tensor:
    """Hidden states `[B, T, H]` behind every node, each seeing the prefix and its ancestors.

    The cache then holds T uncommitted rows behind each sequence.
    """
    return target.forward(draft_ids, positions, buffers.mask, cache)
