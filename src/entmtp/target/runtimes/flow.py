"""What a compiled layer meets in place of a cache and of attention: functions of tensors alone.

Knows: `transformers`' doors for both. Does not know: models, compilers, where rows are kept.

Dimension key: B batch · T new rows · C past rows · S = C + T · N key/value heads · G queries of
each · D head size · L layers of one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, Cache

from entmtp.errors import ModelRefused
from entmtp.target.attention import unknown_options
from entmtp.target.runtimes.export import chain_attention

REGION_ATTENTION = "entmtp-region"


class Flow(Cache):
    """The cache of one forward: past rows as given, new rows collected."""

    def __init__(self, past: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__(layers=[])
        self.past = past
        self.new: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def update(
        self,
        key_states: torch.Tensor,  # [B, N, T, D]
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.new[layer_idx] = key_states, value_states
        keys, values = self.past[layer_idx]
        return torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)

    def stacked(self, layers: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """New keys and values `[L, B, N, T, D]` of layers of one shape."""
        keys, values = zip(*(self.new[layer] for layer in layers), strict=True)
        return torch.stack(keys), torch.stack(values)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.past[layer_idx][0].shape[2]


class OneLayer(Flow):
    """The same for a layer alone, whatever its place."""

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return super().update(key_states, value_states, 0)


def region_attention(
    module: nn.Module,
    query: torch.Tensor,  # [B, N·G, T, D]
    key: torch.Tensor,  # [B, N, S, D]
    value: torch.Tensor,  # [B, N, S, D]
    attention_mask: torch.Tensor,  # [B, 1, T, S] additive, float32
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention in float32 whatever the format, its sums over keys in the keys' order.

    Raises:
        ModelRefused: the model passes an option that this function would have to drop.
    """
    if unknown := unknown_options(options):
        raise ModelRefused(
            f"the compiled runtime does not compute attention with {', '.join(unknown)}; use"
            " --runtime eager"
        )
    query32, key32, value32 = query.float(), key.float(), value.float()
    output, _ = chain_attention(module, query32, key32, value32, attention_mask, scaling)
    return output.to(query.dtype), None


AttentionInterface.register(REGION_ATTENTION, region_attention)
