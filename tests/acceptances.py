"""What acceptors found, whichever form they give it in."""

from __future__ import annotations

import torch

from entmtp.decode import Acceptance, HostAcceptance

Found = Acceptance | HostAcceptance


def rows_of(found: Found) -> list[tuple[list[int], list[int]]]:
    """Slots and tokens of each sequence, as far as they count."""
    slots, token_ids, num_accepted = as_tensors(found)
    return [
        (slots[row, :count].tolist(), token_ids[row, :count].tolist())
        for row, count in enumerate((num_accepted + 1).tolist())
    ]


def as_tensors(found: Found) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slots and tokens `[B, A]`, and numbers of accepted drafts `[B]`."""
    if isinstance(found, Acceptance):
        return found.slots, found.token_ids, found.num_accepted
    counts = [len(row) for row in found.token_ids]
    most = max(counts)
    filled = [[*row, *row[-1:] * (most - len(row))] for row in found.token_ids]
    return torch.tensor(found.slots), torch.tensor(filled), torch.tensor(counts) - 1
