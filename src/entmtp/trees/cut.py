"""Parts of a drafted batch of trees, ready for verification.

Knows: parts and tree buffers. Does not know: tokens, models, caches.

A part made for one step comes once and never again. Its tables are small, so they are made in
Python's numbers: an operation on tensors takes as long as a dozen rows of them.

Dimension key: B batch · S slots of the parts · D depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from entmtp.trees.buffers import TreeBuffers
from entmtp.trees.part import Part
from entmtp.trees.whole_numbers import int_tensor


class _Slots(NamedTuple):
    """What `TreeBuffers` has of one part: of each slot."""

    nodes: list[int]
    parents: list[int]
    depths: list[int]
    ancestors: list[list[int]]
    """`[D+1][S]` from the root down to each slot itself, then zeros"""


def cut_buffers(
    parts: Sequence[Part], device: torch.device, min_slots: int = 1
) -> tuple[TreeBuffers, list[list[int]]]:
    """Buffers of one part per sequence, and the nodes `[B][S]` that their slots stand for.

    Slots that a part does not fill are padding, and stand for the root. There are no levels: a
    part has been drafted.
    """
    depth = max(part.depth for part in parts)
    num_slots = max(min_slots, *(part.num_nodes for part in parts))
    rows = [_slots(part, num_slots, depth) for part in parts]
    valid = [bytes(slot < part.num_nodes for slot in range(num_slots)) for part in parts]
    table = [
        *(row.parents for row in rows),
        *(row.depths for row in rows),
        *(row.ancestors[level] for level in range(depth + 1) for row in rows),
    ]
    tables = int_tensor(table, device).view(-1, len(parts), num_slots)
    buffers = TreeBuffers(
        depth=depth,
        num_slots=num_slots,
        parents=tables[0],
        depths=tables[1],
        valid=_flags(valid, device).view(-1, num_slots),
        mask=_flags([_mask(row.parents) for row in rows], device).view(-1, num_slots, num_slots),
        ancestors=tables[2:].permute(1, 2, 0),
        levels=(),
        parents_on_host=[
            [parent if level else -1 for parent, level in zip(row.parents, row.depths, strict=True)]
            for row in rows
        ],
    )
    return buffers, [row.nodes for row in rows]


def _slots(part: Part, num_slots: int, depth: int) -> _Slots:
    """Padding is as the root, whose parent is itself."""
    above, levels = part.whole.parents, part.whole.depths
    nodes = [*part.nodes, *[0] * (num_slots - part.num_nodes)]
    slots = {node: slot for slot, node in enumerate(part.nodes)}
    parents = [slots[above[node]] for node in nodes]
    ancestors = [[0] * num_slots for _ in range(depth + 1)]
    for slot, (node, parent) in enumerate(zip(nodes, parents, strict=True)):
        level = levels[node]
        for row in ancestors[:level]:
            row[slot] = row[parent]
        if level:
            ancestors[level][slot] = slot
    return _Slots(nodes, parents, [levels[node] for node in nodes], ancestors)


def _mask(parents: Sequence[int]) -> bytes:
    """Ancestor-or-self `[S, S]`, a byte each: what the parent sees, and the slot itself."""
    size = len(parents)
    mask = bytearray(size * size)
    for slot, parent in enumerate(parents):
        start, above = slot * size, parent * size
        mask[start : start + size] = mask[above : above + size]
        mask[start + slot] = 1
    return bytes(mask)


def _flags(rows: Sequence[bytes], device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray().join(rows), dtype=torch.bool).to(device)
