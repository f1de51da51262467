"""The cache of `target.cache` in the form that `transformers`' models want.

Knows: what their base class asks for. Does not know: what is in a cache. A module of its own,
because this class is far away in seconds: a runtime that runs no such model does without.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache
from transformers.cache_utils import CacheLayerMixin

from entmtp.target.cache import Allocation, KVCache


class ModelCache(KVCache, Cache):
    """A `KVCache` that may be handed to a model."""

    def __init__(self, allocation: Allocation, start: int, stop: int) -> None:
        Cache.__init__(self, layers=[_Placeholder() for _ in allocation.layout])
        KVCache.__init__(self, allocation, start, stop)


class _Placeholder(CacheLayerMixin):
    """`Cache` wants a list of layers; ours keeps no state of its own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        raise NotImplementedError

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        raise NotImplementedError

    def get_seq_length(self) -> int:
        raise NotImplementedError

    def get_max_length(self) -> int:
        raise NotImplementedError
