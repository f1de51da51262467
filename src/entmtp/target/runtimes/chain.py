"""Attention for runtimes in which a row must not depend on its company.

Knows: `transformers`' registry of attention functions. Does not know: caches, graphs, compilers.

**Why a row does not depend on its company.** A tree's row and plain decoding's row have the same
visible keys in the same order, with other keys that they may not see in between. `chain_attention`
adds up each sum over keys in their order, one after the other, in a product of matrices; a masked
key adds exactly 0. So both rows get the same bits, and everything else in the graph works on
single rows (DESIGN D3a). A softmax would sum in lanes, whose grouping depends on the places of
the keys; for the same reason these products stay in float32: in bf16 neighbours are added in pairs.

Dimension key: B batch · T new rows · S past and new rows · N attention heads · G queries per
key/value head · D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface

from entmtp.errors import ModelRefused
from entmtp.target.attention import unknown_options

CHAIN_ATTENTION = "entmtp-chain"
_SUM_WIDTH = 16
"""Columns of ones that sum a row: one full vector register, or the product sums in another way."""


def chain_attention(
    module: nn.Module,
    query: torch.Tensor,  # [B, N, T, D]
    key: torch.Tensor,  # [B, N/G, S, D]
    value: torch.Tensor,  # [B, N/G, S, D]
    attention_mask: torch.Tensor,  # [B, 1, T, S] additive
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in float32, whatever the format, whose sums over keys run in the keys' order.

    Raises:
        ModelRefused: the model passes an option that this function would have to drop.
    """
    refuse_unknown(options)
    dtype, query, key, value = query.dtype, query.float(), key.float(), value.float()
    num_heads, num_kv_heads = int(query.shape[1]), int(key.shape[1])
    groups = num_heads // num_kv_heads
    scale = int(query.shape[3]) ** -0.5 if scaling is None else scaling
    folded = (query * scale).unflatten(1, (num_kv_heads, groups)).flatten(2, 3)
    scores = torch.matmul(folded, key.transpose(2, 3)).unflatten(2, (groups, -1))
    scores = scores + attention_mask[:, :, None]
    weights = torch.exp(scores - scores.amax(-1, keepdim=True)).flatten(2, 3)
    ones = torch.ones_like(value[..., :1]).expand(-1, -1, -1, _SUM_WIDTH)
    output = torch.matmul(weights, value) / torch.matmul(weights, ones)[..., :1]
    output = output.unflatten(2, (groups, -1)).flatten(1, 2)
    return output.transpose(1, 2).to(dtype), None


def refuse_unknown(options: dict[str, Any]) -> None:
    """
    Raises:
        ModelRefused: a model passes attention an option that it would have to drop.
    """
    if unknown := unknown_options(options):
        raise ModelRefused(
            f"this runtime does not compute attention with {', '.join(unknown)}; use"
            " --runtime eager"
        )


AttentionInterface.register(CHAIN_ATTENTION, chain_attention)
