"""Attention over the used part of a preallocated cache, with any mask, grouped queries folded.

Knows: query, key and value tensors and a ready mask. Does not know: trees, sequences, lengths.

Dimension key: B batch · T query rows · S used cache length · D head size ·
N attention heads · G queries per key/value head.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from entmtp.errors import BadInput

ATTENTION_NAME = "entmtp"
"""The name under which the function is registered with `transformers`."""


def fold_mask(mask: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Repeat a mask `[B, 1, T, S]` for the folded query axis: `[B, 1, G·T, S]`."""
    if num_groups == 1:
        return mask
    batch, _, rows, used = mask.shape
    return mask.expand(batch, num_groups, rows, used).reshape(batch, 1, num_groups * rows, used)


def folded_attention(
    module: nn.Module,
    query: torch.Tensor,  # [B, N, T, D]
    key: torch.Tensor,  # [B, N/G, S, D]
    value: torch.Tensor,  # [B, N/G, S, D]
    attention_mask: torch.Tensor | None,  # [B, 1, T, S], boolean or additive; None = all visible
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention in the form that `AttentionInterface` expects.

    The queries that share a key head are laid side by side on the row axis instead of repeating
    keys and values for them: the cache is read once (DESIGN D1).

    Returns the output `[B, T, N, D]` and no weights.
    """
    batch, num_heads, rows, head_dim = query.shape
    if attention_mask is None and rows > 1:
        # `transformers` makes no mask for attention that it does not know: all would be visible.
        raise BadInput(
            f"attention {ATTENTION_NAME!r} needs a ready 4-D mask; to use this model outside of"
            " entmtp, call set_attn_implementation('sdpa') on it first"
        )
    num_kv_heads = key.shape[1]
    groups = num_heads // num_kv_heads
    folded = query.reshape(batch, num_kv_heads, groups * rows, head_dim)
    mask = None if attention_mask is None else fold_mask(attention_mask, groups)
    output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    output = output.reshape(batch, num_heads, rows, value.shape[-1])
    return output.transpose(1, 2), None


AttentionInterface.register(ATTENTION_NAME, folded_attention)
