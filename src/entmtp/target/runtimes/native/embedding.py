"""A target's input embedding, as the kernels read it. Knows: formats of numbers."""

from __future__ import annotations

import torch

from entmtp.target.runtimes.native.library import Embedding, address

_FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class EmbeddingRows:
    """Rows `[V, H]` in the format that they have, and the struct that says where they are."""

    def __init__(self, weight: torch.Tensor) -> None:
        """`weight`: of another format, it is copied to float32."""
        weight = weight.detach()
        self._weight = (weight if weight.dtype in _FORMATS else weight.float()).contiguous()
        format_ = _FORMATS[self._weight.dtype]
        self.struct = Embedding(address(self._weight), weight.shape[1], format_)
