"""One Llama-like decoder layer and the norm behind it, in plain PyTorch.

Knows: the arithmetic of `transformers`' Llama and the names of its parameters, so that files and
weights of the one are those of the other. Does not know: what its input stands for, who keeps its
cache. It is here because `transformers`' own takes seconds to import.

Dimension key: B batch · A new tokens · S positions that are seen · H hidden size · N attention
heads · D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn
from torch.nn.functional import silu

from entmtp.heads.base import PrefixShape
from entmtp.target.attention import folded_attention

_START = 0.02
"""Standard deviation of starting weights"""

AttentionFunction = Callable[..., tuple[torch.Tensor, None]]
"""In the form of `target.attention.folded_attention`"""


class Rows(Protocol):
    """A cache, as far as a layer looks at it."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Take new keys and values `[B, N, A, D]`; all that are seen, `[B, N, S, D]`."""


class Decoder(nn.Module):
    """Hidden states at given positions to hidden states behind a layer and a norm."""

    attention: AttentionFunction
    """What the layer attends by"""

    def __init__(self, hidden_size: int, shape: PrefixShape) -> None:
        super().__init__()
        self.attention = folded_attention
        self.layers = nn.ModuleList([_Layer(hidden_size, shape)])
        self.norm = _Norm(hidden_size, shape.rms_norm_eps)
        self.rotary_emb = _Rotary(shape)

    def forward(
        self,
        hidden: torch.Tensor,  # [B, A, H]
        positions: torch.Tensor,  # [B, A]
        mask: torch.Tensor | None,  # [B, 1, A, S] additive; None = all visible
        cache: Rows | None,
    ) -> torch.Tensor:  # [B, A, H]
        rotary = self.rotary_emb(hidden, positions)
        layer = self.layers[0]
        state: torch.Tensor = self.norm(layer(hidden, rotary, mask, cache, self.attention))
        return state


class _Layer(nn.Module):
    def __init__(self, hidden_size: int, shape: PrefixShape) -> None:
        super().__init__()
        self.self_attn = _Attention(hidden_size, shape)
        self.mlp = _Mlp(hidden_size, shape.intermediate_size)
        self.input_layernorm = _Norm(hidden_size, shape.rms_norm_eps)
        self.post_attention_layernorm = _Norm(hidden_size, shape.rms_norm_eps)

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: Rows | None,
        attention: AttentionFunction,
    ) -> torch.Tensor:
        normed = self.input_layernorm(hidden)
        hidden = hidden + self.self_attn(normed, rotary, mask, cache, attention)
        added: torch.Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return added


class _Attention(nn.Module):
    """Grouped attention: several query heads share a head of keys and values."""

    def __init__(self, hidden_size: int, shape: PrefixShape) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.scaling = shape.head_dim**-0.5
        queries = shape.num_attention_heads * shape.head_dim
        keys = shape.num_kv_heads * shape.head_dim
        self.q_proj = _linear(hidden_size, queries)
        self.k_proj = _linear(hidden_size, keys)
        self.v_proj = _linear(hidden_size, keys)
        self.o_proj = _linear(queries, hidden_size)

    def forward(
        self,
        hidden: torch.Tensor,
        rotary: tuple[torch.Tensor, torch.Tensor],
        mask: torch.Tensor | None,
        cache: Rows | None,
        attention: AttentionFunction,
    ) -> torch.Tensor:
        query, key = (
            _rotated(self._heads(projection(hidden)), *rotary)
            for projection in (self.q_proj, self.k_proj)
        )
        value = self._heads(self.v_proj(hidden))
        if cache is not None:
            key, value = cache.update(key, value, 0)
        output, _ = attention(self, query, key, value, mask, scaling=self.scaling)
        projected: torch.Tensor = self.o_proj(output.flatten(2).contiguous())
        return projected

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        """`[B, A, N·D]` to `[B, N, A, D]`."""
        batch, count, _ = rows.shape
        return rows.view(batch, count, -1, self.head_dim).transpose(1, 2)


class _Mlp(nn.Module):
    """`down(SiLU(gate(x)) · up(x))`"""

    def __init__(self, hidden_size: int, inner_size: int) -> None:
        super().__init__()
        self.gate_proj = _linear(hidden_size, inner_size)
        self.up_proj = _linear(hidden_size, inner_size)
        self.down_proj = _linear(inner_size, hidden_size)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self.down_proj(silu(self.gate_proj(state)) * self.up_proj(state))
        return product


class _Norm(nn.Module):
    """Divides each row by its root mean square, in float32."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        exact = state.float()
        exact = exact * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * exact.to(state.dtype)


class _Rotary(nn.Module):
    """Cosines and sines `[B, A, D]` of positions, in the numbers of the states.

    The frequencies are no buffer: a cast to 16 bits would take the positions with it.
    """

    def __init__(self, shape: PrefixShape) -> None:
        super().__init__()
        self._theta, self._size = shape.rope_theta, shape.head_dim

    def forward(
        self, like: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(0, self._size, 2, dtype=torch.float32, device=positions.device)
        angles = positions[..., None].float() * (1.0 / self._theta ** (steps / self._size))
        both = torch.cat([angles, angles], -1)
        return both.cos().to(like.dtype), both.sin().to(like.dtype)


def _rotated(rows: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rows `[B, N, A, D]`, whose halves are the two sides of each angle."""
    first, second = rows.chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    return rows * cosines[:, None] + turned * sines[:, None]


def _linear(num_inputs: int, num_outputs: int) -> nn.Linear:
    linear = nn.Linear(num_inputs, num_outputs, bias=False)
    if not linear.weight.is_meta:  # there it would change nothing, and import the compiler
        nn.init.normal_(linear.weight, std=_START)
    return linear
