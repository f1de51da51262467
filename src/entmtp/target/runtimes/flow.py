"""What a traced model or layer meets in place of a cache: past rows in, new rows out.

Knows: `transformers`' protocol of a cache. Does not know: models, tracers, where rows are kept.

Dimension key: B batch · T new rows · C past rows · S = C + T · N key/value heads · G queries of
each · D head size · L layers of one shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache


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
