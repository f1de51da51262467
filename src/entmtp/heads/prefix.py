"""The prefix layer of Hydra++: one decoder layer over the target's hidden states.

Knows: a one-layer decoder fed hidden states as embeddings, its starting weights and its cache.
Does not know: heads, trees, how a layer computes (`decoder`).

Dimension key: B batch · S positions of whole rows · A new tokens · H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from entmtp.heads.base import PrefixShape
from entmtp.heads.decoder import Decoder
from entmtp.target.cache import KVCache, LayerShape
from entmtp.target.masks import additive, causal_among, step_mask
from entmtp.target.model import TargetModel


class PrefixLayer(nn.Module):
    """Turns hidden states `[B, S, H]` into contexts `[B, S, H]`, each of its past alone."""

    def __init__(self, hidden_size: int, shape: PrefixShape) -> None:
        super().__init__()
        self.shape = shape
        self.body: Any = Decoder(hidden_size, shape)

    @torch.no_grad()
    def start(self, target: TargetModel, sample: torch.Tensor, source: str) -> None:
        """Starting weights with which contexts lie near the hidden states `sample` `[N, H]`.

        Args:
            source: `target` copies the target's last layer, if it has the same tensors; `random`
                does not. Both begin as the identity: what the layer adds is zero at first.
        """
        layer = self.body.layers[0]
        layers: Any = getattr(target.transformers_model.base_model, "layers", None)
        given = layers[-1].state_dict() if layers is not None else {}
        own = layer.state_dict()
        is_same = {n: v.shape for n, v in given.items()} == {n: v.shape for n, v in own.items()}
        if source == "target" and is_same:
            layer.load_state_dict(given)
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
        # The norm divides by each state's rms; its weight puts a typical one back.
        self.body.norm.weight.fill_(sample.square().mean(-1).sqrt().mean())

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """All positions of whole rows at once; padding must lie behind the real ones."""
        rows = hidden.shape[1]
        positions = torch.arange(rows, device=hidden.device)[None]
        mask = causal_among(1, rows, hidden.device)[:, None]
        return self.run(hidden, positions, mask, None)

    def extend(self, hidden: torch.Tensor, cache: KVCache, counts: Sequence[int]) -> torch.Tensor:
        """Contexts of new tokens `[B, A, H]`; commits the first `counts[b]` of each row."""
        batch, rows, _ = hidden.shape
        cache.reserve(max(cache.lengths) + rows)
        lengths = torch.tensor(cache.lengths, device=hidden.device)[:, None]
        positions = lengths + torch.arange(rows, device=hidden.device)
        mask = step_mask(cache.lengths, causal_among(batch, rows, hidden.device))
        contexts = self.run(hidden, positions, mask, cache)
        cache.advance(counts)
        return contexts

    @property
    def layout(self) -> LayerShape:
        """Shape of its cache rows."""
        return LayerShape(self.shape.num_kv_heads, self.shape.head_dim, self.shape.head_dim)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        weight = self.body.norm.weight
        return KVCache.allocate(
            [self.layout], batch_size, capacity, dtype=weight.dtype, device=weight.device
        )

    def run(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: KVCache | None,
    ) -> torch.Tensor:
        """Contexts `[B, A, H]` of hidden states at these positions; moves no length."""
        contexts: torch.Tensor = self.body(hidden, positions, additive(mask, hidden.dtype), cache)
        return contexts
