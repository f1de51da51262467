"""Where the nodes of drafted trees stand in their texts.

Knows: committed lengths and tree topology. Does not know: models, who drafted, what is accepted.

Dimension key: B batch · T slots.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from entmtp.trees import TreeBuffers


def node_positions(lengths: Sequence[int], buffers: TreeBuffers) -> torch.Tensor:
    """Positions `[B, T]` of each node, the root's behind what is committed."""
    if len(lengths) == 1:
        return buffers.depths + lengths[0]
    starts = torch.tensor(lengths, device=buffers.depths.device)
    return starts[:, None] + buffers.depths
