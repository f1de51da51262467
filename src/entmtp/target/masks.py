"""The 4-D masks that a forward needs: causal for a chunk of prompt, ancestors for a tree.

Knows: cache lengths, positions, and the visibility among the rows of one forward. Does not know:
models, or which layer takes which mask.

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
    return placed_mask(torch.tensor(lengths, device=device), among, longest + rows)


def placed_mask(
    lengths: torch.Tensor,  # [B] int64
    among: torch.Tensor,  # [B, T, T] bool
    used: int,
) -> torch.Tensor:
    """The same `[B, 1, T, used]` for any lengths up to `used - T`, without looking at them."""
    batch, rows, _ = among.shape
    starts = lengths[:, None, None]
    places = torch.arange(used, device=among.device)
    mask = (places < starts).expand(batch, rows, -1).contiguous()
    slots = (starts + torch.arange(rows, device=among.device)).expand(batch, rows, rows)
    return mask.scatter_(2, slots, among)[:, None]


def sliding_mask(
    mask: torch.Tensor | None,  # [B, 1, T, S] as `step_mask` gives it
    lengths: Sequence[int],
    positions: torch.Tensor,  # [B, T] of the new rows
    window: int,
) -> torch.Tensor | None:
    """What is left of a mask in a layer that sees only the last `window` positions.

    A key is seen if its position is greater than the query's less the window: the rule of
    `transformers.masking_utils.sliding_window_overlay`, with positions in place of the order in
    the cache, which is another for the nodes of a tree. The same object where nothing is cut off.
    """
    rows, longest = positions.shape[1], max(lengths)
    if longest + rows <= window:
        return mask
    near = near_mask(
        torch.tensor(lengths, device=positions.device), positions, longest + rows, window
    )
    return near if mask is None else mask & near


def near_mask(
    lengths: torch.Tensor,  # [B] int64
    positions: torch.Tensor,  # [B, T] of the new rows
    used: int,
    window: int,
) -> torch.Tensor:
    """Which of `used` cache rows lie within each new row's window: `[B, 1, T, used]`."""
    batch, rows = positions.shape
    places = torch.arange(used, device=positions.device).repeat(batch, 1)
    slots = lengths[:, None] + torch.arange(rows, device=positions.device)
    places = places.scatter(1, slots, positions)
    return (places[:, None, :] > positions[:, :, None] - window)[:, None]


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
