"""The 4-D masks that a forward needs: causal for a chunk of prompt, ancestors for a tree.

Knows: cache lengths and the visibility among the rows of one forward. Does not know: models.

Dimension key: B batch · T rows of this forward · S used cache length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def step_mask(
    lengths: Sequence[int],
    among: torch.Tensor,  # [B, T, T] bool: row t sees row s
) -> torch.Tensor | None:
    """Visibility `[B, 1, T, S]` of the committed prefix and of the new rows among themselves.

    None where everything is visible: one row behind equally long prefixes.
    """
    batch, rows, _ = among.shape
    longest = max(lengths)
    device = among.device
    if min(lengths) == longest:
        if rows == 1:
            return None
        prefix = torch.ones(batch, rows, longest, dtype=torch.bool, device=device)
        return torch.cat([prefix, among], dim=-1)[:, None]
    starts = torch.tensor(lengths, device=device)[:, None, None]
    places = torch.arange(longest + rows, device=device)
    mask = (places < starts).expand(batch, rows, -1).contiguous()
    slots = (starts + torch.arange(rows, device=device)).expand(batch, rows, rows)
    return mask.scatter_(2, slots, among)[:, None]


def causal_among(batch: int, rows: int, device: torch.device) -> torch.Tensor:
    """Row t sees rows 0..t: `[B, T, T]`."""
    return torch.ones(rows, rows, dtype=torch.bool, device=device).tril().expand(batch, -1, -1)


def additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """The same visibility as numbers to add to scores: 0, or minus infinity.

    Every model takes this form, and attention need not make it again in each layer.
    """
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
