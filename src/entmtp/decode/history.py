"""What stands before a token that is to be drawn: the prompt, the text, and the step's own tokens.

Knows: ids. Does not know: logits, samplers, models. Only sequences whose processors look back
need any of this; where none does, nothing is built.

Dimension key: B sequences · N nodes of each · L history · T tree slots · D depth.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch

from entmtp.trees import TreeBuffers

NO_ID = -1
"""Stands in front of histories that are shorter than the longest one."""


class Record(NamedTuple):
    """Ids of one sequence on the host: its prompt and what was said behind it, the root included.

    The array grows; a packed one is on the device in one copy, however long it is.
    """

    ids: array[int]
    num_prompt: int

    @classmethod
    def of(cls, prompt_ids: Sequence[int]) -> Record:
        return cls(array("q", prompt_ids), len(prompt_ids))


class History(NamedTuple):
    """Records of a batch on the device, ready for a step."""

    ids: torch.Tensor  # [B, L] each row's at the end
    num_prompt: torch.Tensor  # [B]

    @classmethod
    def of(cls, records: Sequence[Record], device: torch.device) -> History:
        longest = max(len(record.ids) for record in records)
        ids = torch.full((len(records), longest), NO_ID, dtype=torch.long)
        for row, record in enumerate(records):
            # Copied at once: the array may not grow while a tensor looks at it.
            ids[row, longest - len(record.ids) :] = torch.frombuffer(record.ids, dtype=torch.long)
        num_prompt = torch.tensor([record.num_prompt for record in records])
        return cls(ids.to(device), num_prompt.to(device))


class Nodes(NamedTuple):
    """What stands before the token behind each node."""

    ids: torch.Tensor  # [B, N, L] at the end; in front of it `NO_ID`
    num_generated: torch.Tensor  # [B, N] of them, the last so many are no part of the prompt


class Past(NamedTuple):
    """What stands before one token of each sequence."""

    history: History | None
    drawn: Sequence[torch.Tensor]  # each [B]: the step's tokens so far, in order

    def nodes(self, positions: torch.Tensor) -> Nodes:  # [B]
        """The history with what was drawn behind it: one node a sequence."""
        assert self.history is not None, "these processors look back"
        ids = self.history.ids
        if self.drawn:
            ids = torch.cat([ids, torch.stack(list(self.drawn), 1)], 1)
        return Nodes(ids[:, None], (positions - self.history.num_prompt)[:, None])


NOTHING_BEFORE = Past(None, ())


def tree_nodes(
    history: History,
    draft_ids: torch.Tensor,  # [B, T]
    buffers: TreeBuffers,
    first_positions: torch.Tensor,  # [B]
) -> Nodes:
    """The history with each slot's own path behind it: T nodes a sequence."""
    batch, num_slots = draft_ids.shape
    path = draft_ids[:, None].expand(-1, num_slots, -1).gather(2, buffers.ancestors[:, :, 1:])
    whole = torch.cat([history.ids[:, None].expand(-1, num_slots, -1), path], 2)
    # Paths shorter than the tree is deep are moved to the end.
    missing = buffers.depth - buffers.depths.expand(batch, -1)
    source = torch.arange(whole.shape[2], device=whole.device) - missing[:, :, None]
    ids = whole.gather(2, source.clamp(min=0)).masked_fill(source < 0, NO_ID)
    positions = first_positions[:, None] + buffers.depths
    return Nodes(ids, positions - history.num_prompt[:, None])
