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
    ways: list[list[int]]
    """`[S][D+1]` from the root down to it, then zeros"""


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
    ways = [way for row in rows for way in row.ways]
    buffers = TreeBuffers(
        depth=depth,
        num_slots=num_slots,
        parents=int_tensor([row.parents for row in rows], device),
        depths=int_tensor([row.depths for row in rows], device),
        valid=_flags(valid, device).view(-1, num_slots),
        mask=_flags([_mask(row.parents) for row in rows], device).view(-1, num_slots, num_slots),
        ancestors=int_tensor(ways, device).view(-1, num_slots, depth + 1),
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
    ways: list[list[int]] = []
    for slot, node in enumerate(nodes):
        ways.append([*ways[slots[above[node]]], slot] if node else [0])
    return _Slots(
        nodes,
        [slots[above[node]] for node in nodes],
        [levels[node] for node in nodes],
        [way + [0] * (depth + 1 - len(way)) for way in ways],
    )


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
