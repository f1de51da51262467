"""Parts of a drafted batch of trees, ready for verification.

Knows: parts and tree buffers. Does not know: tokens, models, caches.

A part made for one step comes once and never again. Its tables are small, so they are made in
Python's numbers and copied at once: an operation on tensors takes as long as a dozen rows of them.

Dimension key: B batch · S slots of the parts · D depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from entmtp.trees.buffers import TreeBuffers
from entmtp.trees.part import Part

_FRONT = 4
"""Columns in front of ancestors: parent, depth, whether it is a node, and that node's id"""


def cut_buffers(
    parts: Sequence[Part], device: torch.device, min_slots: int = 1
) -> tuple[TreeBuffers, torch.Tensor]:
    """Buffers of one part per sequence, and the node ids `[B, S]` that their slots stand for.

    Slots that a part does not fill are padding, and stand for the root. There are no levels: a
    part has been drafted.
    """
    depth = max(part.depth for part in parts)
    num_slots = max(min_slots, *(part.num_nodes for part in parts))
    parents = [_parents(part, num_slots) for part in parts]
    rows = [_rows(part, above, depth) for part, above in zip(parts, parents, strict=True)]
    table = torch.tensor(rows).to(device)  # [B, S, _FRONT + D + 1]
    mask = torch.frombuffer(bytearray().join(map(_mask, parents)), dtype=torch.bool)
    behind = [[-1] * (num_slots - part.num_nodes) for part in parts]
    buffers = TreeBuffers(
        depth=depth,
        num_slots=num_slots,
        parents=table[:, :, 0],
        depths=table[:, :, 1],
        valid=table[:, :, 2].bool(),
        mask=mask.view(len(parts), num_slots, num_slots).to(device),
        ancestors=table[:, :, _FRONT:],
        levels=(),
        parents_on_host=[
            [-1, *above[1 : part.num_nodes], *padding]
            for part, above, padding in zip(parts, parents, behind, strict=True)
        ],
    )
    return buffers, table[:, :, 3]


def _parents(part: Part, num_slots: int) -> list[int]:
    """The slot of each slot's parent; the root is its own, and that of padding."""
    slots = {node: slot for slot, node in enumerate(part.nodes)}
    above = part.whole.parents
    return [slots[above[node]] for node in part.nodes] + [0] * (num_slots - part.num_nodes)


def _rows(part: Part, parents: Sequence[int], depth: int) -> list[list[int]]:
    """What is known of each slot, in the order of `table`'s columns."""
    depths = part.whole.depths
    ways: list[list[int]] = []
    rows = []
    for slot, node in enumerate(part.nodes):
        ways.append([*ways[parents[slot]], slot] if slot else [0])
        missing = [0] * (depth - depths[node])
        rows.append([parents[slot], depths[node], 1, node, *ways[slot], *missing])
    padding = [[0] * (_FRONT + depth + 1)] * (len(parents) - len(rows))
    return rows + padding


def _mask(parents: Sequence[int]) -> bytearray:
    """Ancestor-or-self `[S, S]`, a byte each: what the parent sees, and the slot itself."""
    size = len(parents)
    mask = bytearray(size * size)
    for slot, parent in enumerate(parents):
        start, above = slot * size, parent * size
        mask[start : start + size] = mask[above : above + size]
        mask[start + slot] = 1
    return mask
