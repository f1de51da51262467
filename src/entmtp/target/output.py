"""From hidden states to logits, as the model's own last lines do it, but never in 16 bits.

Knows: the output layer, and the scale and soft cap that some models put behind it.
Does not know: layers, caches, sampling.

Dimension key: H hidden size · V vocabulary.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear

from entmtp.target.linears import can_pack, pack_weight, packed_linear

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class OutputLayer:
    """Float32 logits of a `transformers` causal language model."""

    def __init__(self, layer: Any, scale: float, softcap: float | None) -> None:
        """
        Args:
            layer: has a `weight` `[V, H]`, and perhaps a `bias` `[V]`.
        """
        self._layer = layer
        self.scale, self.softcap = scale, softcap

    @classmethod
    def of(cls, model: PreTrainedModel) -> OutputLayer:
        """A model's own."""
        return cls(model.get_output_embeddings(), *_scale_and_softcap(model))

    @cached_property
    def weight(self) -> torch.Tensor:  # [V, H]
        return plain_weight(self._layer)

    @property
    def bias(self) -> torch.Tensor | None:  # [V]
        return getattr(self._layer, "bias", None)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[..., V]` of hidden states `[..., H]`, never rounded to 16 bits (D3a)."""
        if hidden.is_cuda and hidden.dtype != torch.float32:
            flat = hidden.reshape(-1, hidden.shape[-1])
            product = torch.mm(flat, self.weight.t(), out_dtype=torch.float32)
            logits = product.reshape(*hidden.shape[:-1], -1)
        elif torch.compiler.is_compiling():
            # A traced graph is not for this CPU's kernels, and leaves no copies here.
            logits = linear(hidden.float(), self.weight.float())
        elif self.is_packed:
            logits = self._packed_product(hidden.float())
        else:
            logits = linear(hidden.float(), self._weight_fp32)
        if self.bias is not None:
            logits = logits + self.bias.float()
        return self.finish(logits)

    def finish(self, logits: torch.Tensor) -> torch.Tensor:
        """What the model does to the layer's product, bias included: its scale and its soft cap."""
        if self.is_last:
            return logits
        if self.scale != 1:
            logits = logits * self.scale
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits

    @property
    def is_last(self) -> bool:
        """Whether the layer's product is what the model calls logits."""
        return self.scale == 1 and self.softcap is None

    @property
    def is_packed(self) -> bool:
        """Whether each row of logits has the same bits in whatever company it is computed."""
        return self.weight.device.type == "cpu" and can_pack(torch.float32)

    def _packed_product(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])
        # A single row would go through a kernel that adds in another order.
        rows = flat.expand(2, -1) if len(flat) == 1 else flat
        product = packed_linear(rows.contiguous(), self._packed_fp32, None)
        return product[: len(flat)].reshape(*hidden.shape[:-1], -1)

    @cached_property
    def _packed_fp32(self) -> torch.Tensor:
        return pack_weight(self.weight.float())

    @cached_property
    def _weight_fp32(self) -> torch.Tensor:
        """CPU products of 16-bit matrices round their result; a float32 copy does not."""
        return self.weight.float()


def plain_weight(layer: Any) -> torch.Tensor:
    """A layer's weight `[V, H]` as numbers, whatever it is packed in."""
    weight: torch.Tensor = layer.weight
    return weight if is_plain(weight) else weight.dequantize()


def is_plain(weight: torch.Tensor) -> bool:
    """Whether a weight is an ordinary tensor, not one that a quantisation package packs."""
    return type(weight) in (torch.Tensor, torch.nn.Parameter)


def _scale_and_softcap(model: PreTrainedModel) -> tuple[float, float | None]:
    """What the configuration puts behind the output layer. The self-check catches a wrong guess.

    Cohere multiplies by `logit_scale`, Granite divides by `logits_scaling`; Gemma caps.
    """
    config = model.config.get_text_config()
    scale = (getattr(config, "logit_scale", None) or 1) / (
        getattr(config, "logits_scaling", None) or 1
    )
    return scale, getattr(config, "final_logit_softcapping", None)
