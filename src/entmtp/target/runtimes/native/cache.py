"""The key/value cache of `native`: keys in blocks of positions, as its kernels read them.

Knows: how rows lie in memory, and which of the latest forward's are kept. Does not know: trees,
tokens, how attention uses them.

Keys of 16 positions lie together, `[D / 2, 16, 2]`, and values of two, `[D, 2]`, as products of
tiles take them. A block of keys takes the memory of 16 rows, so the tensors have the shapes of any
other cache; but rows can be moved by whole blocks only.

Dimension key: B batch · T new rows · C capacity · N key/value heads · D head size · L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from entmtp.target.cache import LayerShape, Slots
from entmtp.target.runtimes.late_cache import BLOCK, LateCache, on_host
from entmtp.target.runtimes.native.library import LANES, address, kernels, numbers


class OfferedRows(NamedTuple):
    """Keys and values of a forward."""

    memory: torch.Tensor  # [2, L, B, N, T, D] bfloat16

    @classmethod
    def empty(cls, *shape: int) -> OfferedRows:
        """`shape`: without the 2."""
        return cls(torch.empty(2, *shape, dtype=torch.bfloat16))

    @property
    def addresses(self) -> tuple[int, int]:
        """Of keys and of values."""
        start = self.memory.data_ptr()
        return start, start + self.memory.nbytes // 2


class NativeCache(LateCache):
    """A `LateCache` of layers that all have one shape."""

    block = LANES
    _new_rows: OfferedRows | None = None

    @classmethod
    def of(cls, layout: Sequence[LayerShape], batch_size: int) -> NativeCache:
        """Room for one block; it grows with what is committed. Numbers are in bfloat16."""
        dtype, device = torch.bfloat16, torch.device("cpu")
        return cls.allocate(layout, batch_size, BLOCK, dtype=dtype, device=device)

    @property
    def memory_of_all(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys as they lie in blocks and values as in pairs, both in the shape `[L, *, N, C, D]`.

        As the kernels see them: `[L, *, N, C / 16, D / 2, 16, 2]` and `[L, *, N, C / 2, D, 2]`.
        """
        (store,) = self._allocation.stores.values()
        return store.keys, store.values

    @property
    def places(self) -> range:
        """Of this cache's sequences in that memory."""
        return self._rows

    def offer_rows(self, rows: OfferedRows) -> None:
        """As `offer`."""
        self._new_rows = rows

    def _commit(self, counts: Sequence[int], slots: Slots | None) -> None:
        lengths, first = self.lengths, self._rows.start
        self._fit(max(n + count for n, count in zip(lengths, counts, strict=True)))
        assert self._new_rows is not None, "a forward comes first"
        _, num_layers, batch, num_heads, num_rows, size = self._new_rows.memory.shape
        new_keys, new_values = self._new_rows.addresses
        keys, values = self.memory_of_all
        chosen = [range(count) for count in counts] if slots is None else on_host(slots)
        for row, (length, count, kept) in enumerate(zip(lengths, counts, chosen, strict=True)):
            kernels().entmtp_commit(
                new_keys, new_values, num_layers, batch, row, num_heads,
                num_rows, size, numbers(kept), count, address(keys), address(values),
                keys.shape[1], first + row, self.capacity, length,
            )  # fmt: skip
            self._allocation.lengths[first + row] = length + count
