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

import torch

from entmtp.target.cache import KVCache
from entmtp.target.runtimes.capture import sent


class StaticCache(KVCache):
    """A `KVCache` with a second way to write: behind lengths that only the device looks at."""

    _step: tuple[torch.Tensor, int] | None = None

    @classmethod
    def like(cls, cache: KVCache, batch_size: int, capacity: int) -> Self:
        """An empty one for the layers of another cache."""
        layout, store = cache._allocation.layout, next(iter(cache._allocation.stores.values()))
        dtype = store.keys.dtype
        return cls.allocate(layout, batch_size, capacity, dtype=dtype, device=cache.device)

    def view(self, start: int, stop: int) -> StaticCache:
        first = self._rows.start
        return StaticCache(self._allocation, first + start, first + stop)

    @classmethod
    def lend(cls, allocation: Any, batch_size: int) -> Self:
        """An empty cache in memory that another one had."""
        allocation.lengths[:] = [0] * len(allocation.lengths)
        return cls(allocation, 0, batch_size)

    @property
    def allocation(self) -> Any:
        """The memory: the same object however it grows."""
        return self._allocation

    @property
    def place(self) -> tuple[object, int, int, int]:
        """Names the addresses of these sequences' rows: others once the memory has grown."""
        held = len(self._allocation.lengths)
        return self._allocation, held, self.capacity, self._rows.start

    def add_row(self) -> None:
        """Memory grows twofold, because graphs have to be captured anew for it."""
        if len(self._rows) == (held := len(self._allocation.lengths)):
            self._allocation.resize(2 * held, self.capacity)
        self._rows = range(len(self._rows) + 1)

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

    def keep(self, slots: torch.Tensor, counts: Sequence[int]) -> None:
        self.move(slots, sent(self.lengths, self.device))
        self.advance(counts)


def _places(lengths: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices `[B, 1]` and `[B, A]` of rows so far behind each length; offsets `[A]` or `[B, A]`."""
    batch = torch.arange(len(lengths), device=lengths.device)[:, None]
    return batch, lengths[:, None] + offsets
