"""FlexAttention with any mask: PyTorch generates the kernel, and the mask is read inside of it.

Knows: queries, keys, values, a ready mask. Does not know: trees, lengths.

Dimension key: B batch · T query rows · S rows of memory · N heads · G queries per key/value head ·
D head size.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from entmtp.errors import ModelRefused
from entmtp.target.attention import unknown_options

_MOST_SHAPES = 256
"""Kernels at the most; each node bucket has its own in each context bucket."""


@lru_cache
def _compiled() -> Any:
    return torch.compile(flex_attention, dynamic=False, fullgraph=True)


def _run_compiled(*arguments: Any, **options: Any) -> Any:
    with torch._dynamo.config.patch(recompile_limit=_MOST_SHAPES):
        return _compiled()(*arguments, **options)


def flex_tree_attention(
    module: nn.Module,
    query: torch.Tensor,  # [B, N, T, D]
    key: torch.Tensor,  # [B, N/G, S, D]
    value: torch.Tensor,  # [B, N/G, S, D]
    attention_mask: torch.Tensor,  # [B, 1, T, S] additive
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention `[B, T, N, D]` in the form that `AttentionInterface` expects.

    Raises:
        ModelRefused: the model passes an option that this kernel would have to drop.
    """
    if unknown := unknown_options(options):
        raise ModelRefused(
            f"the model's attention takes the option {', '.join(unknown)}, which the flex kernel"
            " does not know; use attention sdpa"
        )

    def seen(
        score: torch.Tensor,
        batch: torch.Tensor,
        head: torch.Tensor,
        row: torch.Tensor,
        place: torch.Tensor,
    ) -> torch.Tensor:
        return score + attention_mask[batch, 0, row, place]

    run: Any = _run_compiled if query.is_cuda else flex_attention
    output = run(query, key, value, score_mod=seen, scale=scaling, enable_gqa=True)
    return output.transpose(1, 2), None
