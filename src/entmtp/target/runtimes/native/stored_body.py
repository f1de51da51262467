"""Decoder layers made of a checkpoint's tensors and a few numbers, as the kernels want them.

Knows: the parts of a body that `weights` packs. Does not know: files, caches, how long anything is
good for.

Dimension key: T positions · D rotary size · I inputs · O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch

from entmtp.target.runtimes.native.weights import epsilon_of, rotary_tables

_NUM_POSITIONS = 4096
"""For which rotary tables are compared"""


class Linear(NamedTuple):
    """What is packed of an `nn.Linear`."""

    weight: torch.Tensor  # [O, I]
    bias: torch.Tensor | None = None  # [O]

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]


class Rotary:
    """Cosines and sines of positions, as a model's `rotary_emb` says them in float32."""

    def __init__(self, frequencies: Sequence[float], factor: float) -> None:
        """
        Args:
            frequencies: radians a position of each pair of the D numbers that are rotated.
            factor: of both tables.
        """
        self._frequencies = torch.tensor(frequencies)
        self._factor = factor

    def __call__(
        self, like: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables `[1, T, D]` of positions `[1, T]`."""
        del like
        angles = positions[..., None].float() * self._frequencies
        both = torch.cat([angles, angles], -1)
        return both.cos() * self._factor, both.sin() * self._factor


class StoredBody:
    """Stands for the body of a `transformers` model."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], numbers: Mapping[str, Any]) -> None:
        """
        Args:
            tensors: by their names in the model's body.
            numbers: what `numbers_of` said of it.
        """
        scaling = numbers["scaling"]
        self.layers = [
            _layer(tensors, f"layers.{layer}", scaling) for layer in range(numbers["num_layers"])
        ]
        self.norm = SimpleNamespace(weight=tensors["norm.weight"], eps=numbers["epsilon"])
        self.rotary_emb = Rotary(numbers["frequencies"], numbers["factor"])


def numbers_of(body: Any) -> dict[str, Any] | None:
    """Numbers, as JSON values, that make another body of the same tensors; None where these do not
    say all.

    Args:
        body: of a model that `misfit` finds nothing against.
    """
    frequencies = getattr(body.rotary_emb, "inv_freq", None)
    if not isinstance(frequencies, torch.Tensor):
        return None
    numbers: dict[str, Any] = {
        "num_layers": len(body.layers),
        "scaling": float(body.layers[0].self_attn.scaling),
        "epsilon": float(epsilon_of(body.norm)),
        "frequencies": frequencies.float().tolist(),
        "factor": float(getattr(body.rotary_emb, "attention_scaling", 1.0)),
    }
    ours = rotary_tables(Rotary(numbers["frequencies"], numbers["factor"]), _NUM_POSITIONS)
    theirs = rotary_tables(body.rotary_emb, _NUM_POSITIONS)
    is_same = all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
    return numbers if is_same else None


def _layer(tensors: Mapping[str, torch.Tensor], name: str, scaling: float) -> SimpleNamespace:
    def linear(part: str) -> Linear:
        return Linear(tensors[f"{name}.{part}.weight"], tensors.get(f"{name}.{part}.bias"))

    def norm(part: str) -> SimpleNamespace | None:
        weight = tensors.get(f"{name}.{part}.weight")
        return None if weight is None else SimpleNamespace(weight=weight)

    attention = SimpleNamespace(
        **{part: linear(f"self_attn.{part}") for part in ("q_proj", "k_proj", "v_proj", "o_proj")},
        q_norm=norm("self_attn.q_norm"),
        k_norm=norm("self_attn.k_norm"),
        scaling=scaling,
    )
    mlp = {part: linear(f"mlp.{part}") for part in ("gate_proj", "up_proj", "down_proj")}
    return SimpleNamespace(
        self_attn=attention,
        mlp=SimpleNamespace(**mlp),
        input_layernorm=norm("input_layernorm"),
        post_attention_layernorm=norm("post_attention_layernorm"),
    )
