"""Products of rows with a weight matrix, in the forms whose rows do not depend on their company.

Knows: oneDNN's packed weights, and int8 by hand. Does not know: models, where a product stands.

* Floats: the weight is packed once into the order that oneDNN's kernel reads. Each row of the
  result is one chain of sums over the width, for any number of rows (two or more in float32).
* int8: a row is scaled by its own largest value and rounded, the products are summed in whole
  numbers, and a whole number is the same in any order. Neither sees another row.

Dimension key: R rows · I width · O outputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

_LARGEST = 127
"""Whole numbers reach from -127 to 127: the same scale on both sides of 0."""
_SMALLEST_SCALE = 1e-30
"""A row of zeros has some scale, too."""

_library = torch.library.Library("entmtp", "DEF")
_library.define("packed_linear(Tensor rows, Tensor weight, Tensor? bias) -> Tensor")


def packed_linear(
    rows: torch.Tensor,  # [..., I]
    weight: torch.Tensor,  # [O, I], packed
    bias: torch.Tensor | None,  # [O]
) -> torch.Tensor:
    """`rows @ weight.T + bias`, with the weight that `pack_weight` gave."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product


def _packed_linear_shape(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    return rows.new_empty(*rows.shape[:-1], weight.shape[0])


# An operation of our own, because a compiler takes oneDNN's for constants only: one compiled
# layer serves the weights of all.
for _key in ("CPU", "MkldnnCPU"):
    _library.impl("packed_linear", packed_linear, _key)
_library.impl("packed_linear", _packed_linear_shape, "Meta")


class PackedLinear(nn.Module):
    """An `nn.Linear` whose weight will be packed when it is run (`packed`)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = torch.ops.entmtp.packed_linear(rows, self.weight, self.bias)
        return product


class Int8Linear(nn.Module):
    """`y = (q_x · q_w) s_x s_w + b`, with `s = max|·|/127` of a row of x and of a row of w."""

    weight: torch.Tensor  # [O, I] int8
    scale: torch.Tensor  # [O]
    bias: torch.Tensor | None  # [O]

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        whole, scale = quantise_rows(weight.detach().float())
        self.register_buffer("weight", whole)
        self.register_buffer("scale", scale[:, 0].clone())
        self.register_buffer("bias", None if bias is None else bias.detach().float())

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        whole, scale = quantise_rows(rows)
        flat = whole.reshape(-1, whole.shape[-1])
        sums = torch._int_mm(flat, self.weight.t()).reshape(*rows.shape[:-1], -1)
        product = sums.float() * scale * self.scale
        return product if self.bias is None else product + self.bias


def quantise_rows(
    rows: torch.Tensor,  # [..., I] float32
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whole numbers `[..., I]` and the scale of each row `[..., 1]`."""
    scale = rows.abs().amax(-1, keepdim=True).clamp(min=_SMALLEST_SCALE) / _LARGEST
    return torch.round(rows / scale).to(torch.int8), scale


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has a kernel for these numbers here."""
    if not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """A weight `[O, I]` in the order that oneDNN's kernel reads (`can_pack`)."""
    ordered: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
    return ordered


def packed(module: nn.Module) -> dict[str, torch.Tensor]:
    """Every tensor of a module by its name, those of `PackedLinear` in packed form."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, part in module.named_modules():
        if isinstance(part, PackedLinear):
            key = f"{name}.weight"
            tensors[key] = pack_weight(part.weight)
    return {name: tensor.detach() for name, tensor in tensors.items()}


def twin(module: nn.Module, swap: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """A copy that shares every tensor; parts for which `swap` has another are those."""
    if (other := swap(module)) is not None:
        return other
    copied = copy.copy(module)
    copied._modules = {
        name: None if part is None else twin(part, swap) for name, part in module._modules.items()
    }
    return copied
