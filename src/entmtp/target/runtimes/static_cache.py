"""A key/value cache whose steps may be captured: fixed memory, and places read from the device.

Knows: where a step's rows go and which of them survive, given lengths as a tensor. Does not know:
graphs, trees, who accepted what.

The host knows the lengths too, as every `KVCache` does: it needs them for prompts, for growth, and
to send them to the device when a step begins.

Dimension key: B sequences · A kept rows · T new rows · C capacity · N key/value heads · D head
size · L layers of one shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self
from weakref import ref

import torch

from entmtp.target.cache import KVCache, Slots
from entmtp.target.model_cache import ModelCache
from entmtp.target.runtimes.capture import Place, sent


class StaticCache(ModelCache):
    """A `KVCache` with a second way to write: behind lengths that only the device looks at."""

    _step: tuple[torch.Tensor, int] | None = None

    @classmethod
    def like(cls, cache: KVCache, batch_size: int, capacity: int) -> Self:
        """An empty one for the layers of another cache."""
        layout, store = cache._allocation.layout, next(iter(cache._allocation.stores.values()))
        dtype = store.keys.dtype
        return cls.allocate(layout, batch_size, capacity, dtype=dtype, device=cache.device)

    @property
    def place(self) -> Place:
        """Where these sequences' rows lie now."""
        held = len(self._allocation.lengths)
        return Place(self._allocation, held, self.capacity, self._rows.start)

    @torch.inference_mode(False)  # memory may be written in any mode, whoever came first
    def reserve(self, capacity: int) -> None:
        super().reserve(capacity)

    @torch.inference_mode(False)
    def add_row(self) -> None:
        """Memory grows twofold, because graphs have to be captured anew for it."""
        if len(self._rows) == (held := len(self._allocation.lengths)):
            self._allocation.resize(2 * held, self.capacity)
        self._rows = range(len(self._rows) + 1)

    def has_room(self, batch_size: int, capacity: int) -> bool:
        return len(self._allocation.lengths) >= batch_size and self.capacity >= capacity

    def emptied(self, batch_size: int) -> StaticCache:
        """A cache in the same memory; whatever this one held is forgotten."""
        self._allocation.lengths[:] = [0] * len(self._allocation.lengths)
        return StaticCache(self._allocation, 0, batch_size)

    @contextmanager
    def writing_at(self, lengths: torch.Tensor, used: int) -> Iterator[None]:  # lengths [B]
        """Inside, forwards write behind these lengths and see the first `used` rows of memory."""
        self._step = lengths, used
        try:
            yield
        finally:
            self._step = None

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *rest: Any,
        **named: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._step is None:
            return super().update(key_states, value_states, layer_idx, *rest, **named)
        lengths, used = self._step
        keys, values = self.layer(layer_idx)
        batch, slots = _places(lengths, torch.arange(key_states.shape[2], device=lengths.device))
        keys[batch, :, slots] = key_states.transpose(1, 2)
        values[batch, :, slots] = value_states.transpose(1, 2)
        return keys[:, :, :used], values[:, :, :used]

    def move(self, slots: torch.Tensor, lengths: torch.Tensor) -> None:
        """Put rows `slots` `[B, A]` of those written last behind lengths `[B]`, in that order.

        All A of them: rows behind those that are kept are garbage before and after.
        """
        batch, sources = _places(lengths, slots)
        _, aims = _places(lengths, torch.arange(slots.shape[1], device=slots.device))
        for store in self._allocation.stores.values():
            for tensor in store:
                lanes = tensor[:, self._rows.start : self._rows.stop]
                lanes[:, batch, :, aims] = lanes[:, batch, :, sources]

    def keep(self, slots: Slots, counts: Sequence[int]) -> None:
        self.move(torch.as_tensor(slots, device=self.device), sent(self.lengths, self.device))
        self.advance(counts)


class Memories:
    """Memory of caches that outlives them, so that graphs which know its addresses do not go stale.

    It has room for as many caches as were in use at once, and is never given back.
    """

    def __init__(self, like: KVCache) -> None:
        """`like`: any cache of the same layers."""
        self._like = like
        self._lent: list[tuple[StaticCache, ref[StaticCache]]] = []

    def lend(self, batch_size: int, capacity: int) -> StaticCache:
        """An empty cache, free again when nobody holds it any more."""
        for place, (memory, user) in enumerate(self._lent):
            if user() is None and memory.has_room(batch_size, capacity):
                cache = memory.emptied(batch_size)
                self._lent[place] = memory, ref(cache)
                return cache
        with torch.inference_mode(False):
            memory = StaticCache.like(self._like, batch_size, capacity)
        cache = memory.emptied(batch_size)
        self._lent.append((memory, ref(cache)))
        return cache


def _places(lengths: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices `[B, 1]` and `[B, A]` of rows `[A]` or `[B, A]` behind each length."""
    batch = torch.arange(len(lengths), device=lengths.device)[:, None]
    return batch, lengths[:, None] + offsets
