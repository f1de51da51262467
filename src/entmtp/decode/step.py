"""Verification: one forward of the target over a batch of drafted trees.

Knows: the target's protocol and tree topology. Does not know: who drafted, what is accepted.

Dimension key: B batch · T slots · H hidden size.
"""

from __future__ import annotations

import torch

from entmtp.target.cache import KVCache
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainCache
from entmtp.trees import TreeBuffers


def verify(
    target: TargetModel,
    cache: KVCache | PlainCache,
    draft_ids: torch.Tensor,  # [B, T], root at slot 0
    buffers: TreeBuffers,
) -> torch.Tensor:
    """Hidden states `[B, T, H]` behind every node, each seeing the prefix and its ancestors.

    The cache then holds T uncommitted rows behind each sequence.
    """
    lengths = cache.lengths
    if len(lengths) == 1:
        positions = buffers.depths + lengths[0]
    else:
        positions = torch.tensor(lengths, device=draft_ids.device)[:, None] + buffers.depths
    return target.forward(draft_ids, positions, buffers.mask, cache)
