"""The decoder layers of a Llama-like model as structs of packed weights.

Knows: which parts such a layer has, by their names in `transformers`. Does not know: steps, caches.

A model is taken for what its layers look like, and refused by name where they look otherwise; that
they compute what is expected of them is the self-check's affair (`selfcheck`), which compares
logits with the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from entmtp.target.model import TargetModel
from entmtp.target.runtimes.native.library import (
    LANES,
    TILE_INPUTS,
    Body,
    Layer,
    PackedMatrix,
    address,
)
from entmtp.target.runtimes.native.smoothing import LayerFactors, smoothed

_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
_LONG_ROW = 512
_MOVING_ROPES = ("dynamic", "longrope")


class PackedLayer(NamedTuple):
    """One layer: a struct, and what it points to."""

    struct: Layer
    held: list[object]


class PackedBody(NamedTuple):
    """All layers: a struct, and what it points to."""

    struct: Body
    held: list[object]


def misfit(target: TargetModel) -> str | None:
    """Why a model is not of the kind that the kernels know; None where it looks like it."""
    if target.unmodified.known_to_fit == "native":
        return None
    body: Any = target.transformers_model.base_model
    layers = getattr(body, "layers", None)
    if not isinstance(layers, nn.ModuleList) or not isinstance(
        getattr(body, "norm", None), nn.Module
    ):
        return "it has no list of layers with a norm behind them"
    if not hasattr(body, "rotary_emb"):
        return "it has no rotary positions"
    if (act := getattr(target.config, "hidden_act", None)) != "silu":
        return f"its activation is {act}, not silu"
    rope = getattr(target.config, "rope_parameters", None) or {}
    if rope.get("rope_type") in _MOVING_ROPES:
        return f"its rotary frequencies change with the length ({rope['rope_type']})"
    if len(set(target.layout)) != 1 or target.layout[0].key_dim != target.layout[0].value_dim:
        return "its layers' caches differ in shape"
    for layer in layers:
        if reason := _layer_misfit(layer):
            return reason
    return _size_misfit(layers[0], target)


def _layer_misfit(layer: nn.Module) -> str | None:
    parts: Any = layer
    if _names(layer) != _LAYER:
        return f"a layer of it consists of {', '.join(sorted(_names(layer)))}"
    if _names(parts.self_attn) - _HEAD_NORMS != _ATTENTION:
        return f"its attention consists of {', '.join(sorted(_names(parts.self_attn)))}"
    if _names(parts.mlp) != _MLP:
        return f"its MLP consists of {', '.join(sorted(_names(parts.mlp)))}"
    for norm in (parts.input_layernorm, parts.post_attention_layernorm):
        if [name for name, _ in norm.named_parameters()] != ["weight"]:
            return "its norms have a bias, or no weight"
    return None


def _size_misfit(layer: Any, target: TargetModel) -> str | None:
    size = target.layout[0].key_dim
    widths = [layer.self_attn.q_proj.in_features, layer.self_attn.o_proj.in_features]
    widths.append(layer.mlp.down_proj.in_features)
    if any(width % TILE_INPUTS for width in widths):
        return f"its widths {widths} are not multiples of {TILE_INPUTS}"
    if size % LANES:
        return f"its heads have {size} numbers, not a multiple of {LANES}"
    return None


def _names(module: nn.Module) -> set[str]:
    """Of its direct parts."""
    return {name for name, _ in module.named_children()}


def pack_layers(
    body: Any,
    num_kv_heads: int,
    num_threads: int,
    number_format: str,
    factors: Sequence[LayerFactors] | None = None,
) -> PackedBody:
    """Pack a body's `layers` and `norm`.

    Args:
        body: a module whose layers `misfit` finds nothing against.
        number_format: of the matrices, `int8` or `bfloat16`.
        factors: of each layer's channels, which are made even by them.
    """
    given = list(body.layers)
    if factors is not None:
        given = [smoothed(layer, some) for layer, some in zip(given, factors, strict=True)]
    packed = [pack_layer(layer, num_threads, number_format) for layer in given]
    layers = (Layer * len(packed))(*(one.struct for one in packed))
    first, norm = body.layers[0], _floats(body.norm.weight)
    head_size = first.self_attn.k_proj.out_features // num_kv_heads
    struct = Body(
        layers=layers,
        last_norm=address(norm),
        num_layers=len(packed),
        hidden_size=first.self_attn.q_proj.in_features,
        num_heads=first.self_attn.q_proj.out_features // head_size,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        inner_size=first.mlp.down_proj.in_features,
        rotary_size=rotary_tables(body.rotary_emb, 1)[0].shape[1] * 2,
        epsilon=epsilon_of(body.norm),
        scale=first.self_attn.scaling,
    )
    return PackedBody(struct, [layers, norm, *(one.held for one in packed)])


def pack_layer(layer: Any, num_threads: int, number_format: str) -> PackedLayer:
    def packed(weight: torch.Tensor, bias: torch.Tensor | None) -> PackedMatrix:
        span = long_span(weight.shape[1]) if number_format == "int8" else 1
        return PackedMatrix(weight, bias, num_threads, span, number_format)

    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    query_key_value = packed(_rows(projections), _biases(projections))
    output = packed(attention.o_proj.weight, attention.o_proj.bias)
    gates = [mlp.gate_proj, mlp.up_proj]
    gate_up = packed(
        interleaved(*(gate.weight for gate in gates)),
        None if gates[0].bias is None else interleaved(*(gate.bias for gate in gates)),
    )
    down = packed(mlp.down_proj.weight, mlp.down_proj.bias)
    parts = [layer.input_layernorm, layer.post_attention_layernorm]
    parts += [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    norms = [None if part is None else _floats(part.weight) for part in parts]
    matrices = [query_key_value, output, gate_up, down]
    struct = Layer(*(one.struct for one in matrices), *(address(norm) for norm in norms))
    return PackedLayer(struct, [*matrices, *norms])


def long_span(width: int) -> int:
    """Tiles of a group in int8. Sixteen rows take a fifth less time with groups of three than of
    one, and where channels are even it is no coarser; short rows have nothing to save."""
    if width < _LONG_ROW:
        return 1
    return next(span for span in (3, 4, 2, 1) if width % (span * TILE_INPUTS) == 0)


@torch.inference_mode()
def rotary_tables(rotary: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `[length, rotary size / 2]` of a body's positions, by its `rotary_emb`."""
    positions = torch.arange(length)[None]
    cosines, sines = rotary(torch.zeros(1), positions)
    half = cosines.shape[-1] // 2
    return _floats(cosines[0, :, :half]), _floats(sines[0, :, :half])


def _rows(linears: list[Any]) -> torch.Tensor:
    return torch.cat([linear.weight.detach().float() for linear in linears])


def _biases(linears: list[Any]) -> torch.Tensor | None:
    if all(linear.bias is None for linear in linears):
        return None
    return torch.cat(
        [
            torch.zeros(linear.out_features)
            if linear.bias is None
            else linear.bias.detach().float()
            for linear in linears
        ]
    )


def interleaved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """A block of the outputs of `gate`, the same block of `up`, and so on: `[2 O, …]`."""
    blocks = [part.detach().float().unflatten(0, (-1, LANES)) for part in (gate, up)]
    return torch.stack(blocks, 1).flatten(0, 2)


def _floats(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().float().contiguous().clone()


def epsilon_of(norm: Any) -> float:
    value: float = getattr(norm, "variance_epsilon", None) or norm.eps
    return value
