"""Parts of a drafted batch of trees, ready for verification: gathered from what the whole has.

Knows: tree buffers and node ids. Does not know: tokens, models, caches.

A tree made for one step comes once and never again: to make tables for it as `buffers` does would
cost more than it saves. All that verification needs of it is in the whole's tables already.

Dimension key: B batch · T slots of the whole · S slots of the parts · D depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from entmtp.trees.buffers import TreeBuffers


def cut_buffers(
    whole: TreeBuffers,
    nodes: Sequence[Sequence[int]],
    depth: int,
    min_slots: int = 1,
) -> tuple[TreeBuffers, torch.Tensor]:
    """Buffers of one part per sequence, and the slots `[B, S]` of the whole that they stand for.

    Slots that a part does not fill are padding, and stand for the root. There are no levels: a
    part has been drafted.

    Args:
        nodes: of each sequence, ids in its own tree, ascending, the root first.
        depth: of the deepest of them.
    """
    num_slots = max(min_slots, *map(len, nodes))
    filled = [[*row, *[0] * (num_slots - len(row))] for row in nodes]
    places = torch.tensor(filled).to(whole.parents.device)
    # Where each slot of the whole stands in the part; only slots of the part are looked up.
    slots = torch.arange(num_slots, device=places.device).expand_as(places)
    stands = torch.zeros_like(whole.parents).scatter_(1, places, slots)
    stands[:, 0] = 0  # the root, whatever padding has written there
    above = whole.ancestors[:, :, : depth + 1].gather(
        1, places[:, :, None].expand(-1, -1, depth + 1)
    )
    ancestors = stands.gather(1, above.flatten(1)).view_as(above)
    valid = places > 0
    valid[:, 0] = True
    mask = torch.eye(num_slots, dtype=torch.bool, device=places.device)
    buffers = TreeBuffers(
        depth=depth,
        num_slots=num_slots,
        parents=stands.gather(1, whole.parents.gather(1, places)),
        depths=whole.depths.gather(1, places),
        valid=valid,
        mask=mask.repeat(len(nodes), 1, 1).scatter_(2, ancestors, True),
        ancestors=ancestors,
        levels=(),
    )
    return buffers, places
