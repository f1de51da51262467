"""The draft vocabulary: the ids worth an output row, chosen by how often the target writes them.

Knows: counts of ids. Does not know: where they were counted, or what a row costs (DESIGN D4).

Dimension key: V vocabulary · W draft vocabulary.
"""

from __future__ import annotations

import torch

from entmtp.errors import BadInput


def choose_draft_ids(counts: torch.Tensor, size: int) -> torch.Tensor:
    """The `size` most frequent ids of `counts` `[V]`, in ascending order; ties to the lower id.

    Raises:
        BadInput: more ids are asked for than the vocabulary has.
    """
    if not 0 < size <= counts.numel():
        raise BadInput(
            f"a draft vocabulary of {size} was asked for, the model's vocabulary has"
            f" {counts.numel()} tokens; choose a size between 1 and that"
        )
    order = torch.sort(counts.double(), descending=True, stable=True).indices
    return order[:size].sort().values


def coverage(counts: torch.Tensor, ids: torch.Tensor) -> float:
    """Share of all counted tokens that the given ids make up."""
    total = counts.double().sum().item()
    return float(counts.double()[ids].sum().item() / total) if total else 0.0


def inverse_map(ids: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """For each target id `[V]` its row in the draft vocabulary, or -1."""
    if ids is None:
        return torch.arange(vocab_size)
    rows = torch.full((vocab_size,), -1, dtype=torch.long)
    rows[ids] = torch.arange(ids.numel())
    return rows
