"""Which numbers a training run multiplies in; weights, losses and the optimiser stay in float32.

Knows: what devices multiply fastest. Does not know: heads, losses, data.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AUTO = "auto"


def resolve(name: str, device: torch.device) -> str:
    """The name of a format; `auto` is bfloat16 where the device has units for products of it."""
    if name != AUTO:
        return name
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    return "bfloat16" if torch.cpu.get_capabilities().get("amx_bf16") else "float32"


def multiplying_in(name: str, device: torch.device) -> AbstractContextManager[None]:
    """Inside, products of matrices are in a format of `DTYPES`."""
    return torch.autocast(device.type, DTYPES[name], enabled=name != "float32")


def current(tensor: torch.Tensor) -> torch.dtype:
    """The format in which a product of `tensor` would be now."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else tensor.dtype
