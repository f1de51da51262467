"""Which weights these are: a name for them, and a sketch that survives another number format.

Knows: parameters, packed or not. Does not know: architectures, heads.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from entmtp.target.output import is_plain

_NUM_VALUES = 64
"""Of each parameter."""
_NUM_PARAMETERS = 64
"""In a sketch."""
_RELATIVE, _ABSOLUTE = 2**-7, 2**-24
"""Two roundings to bfloat16 and one to float16, whose smallest number is 2^-24."""


def fingerprint(model: nn.Module, config: Mapping[str, Any]) -> str:
    """SHA-256 over `config` and strided values of each parameter, rounded to bfloat16.

    The same in float32 and bfloat16. In float16 it may be another one: the values were rounded to
    that first, and no rounding of them gives back what rounding the stored ones gives.
    """
    digest = hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode())
    for name, sample in _samples(model):
        digest.update(name.encode())
        digest.update(sample.to(torch.bfloat16).view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]


def sketch(model: nn.Module) -> str:
    """The largest of the sampled values of some parameters, as bfloat16 in hexadecimal."""
    largest = torch.tensor([float(sample.abs().max()) for _, sample in _samples(model)])
    some = largest[:: -(-len(largest) // _NUM_PARAMETERS)]
    return some.to(torch.bfloat16).view(torch.int16).numpy().astype(">i2").tobytes().hex()


def is_alike(one: str, other: str) -> bool:
    """Whether two sketches are of the same weights in two number formats."""
    try:
        ours, theirs = _values(one), _values(other)
    except ValueError:
        return False
    if ours.shape != theirs.shape:
        return False
    return torch.allclose(ours, theirs, rtol=_RELATIVE, atol=_ABSOLUTE)


def _values(text: str) -> torch.Tensor:
    """Raises ValueError: it is no sketch."""
    data = bytes.fromhex(text)
    if len(data) % 2:
        raise ValueError("half a number")
    numbers = [int.from_bytes(data[i : i + 2], "big", signed=True) for i in range(0, len(data), 2)]
    return torch.tensor(numbers, dtype=torch.int16).view(torch.bfloat16).float()


def _samples(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for name, weight in sorted(model.named_parameters()):
        flat = (weight if is_plain(weight) else weight.dequantize()).detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _NUM_VALUES)][:_NUM_VALUES]
        yield name, sample.float().cpu()
