"""The key/value cache of the target: preallocated, with few verbs.

Knows: how many tokens of each sequence are committed (`lengths`), where new rows are written,
which of them survive (`keep`). Does not know: trees, tokens, or who accepted what.

Every forward writes its T rows directly behind each sequence's committed part and moves no
length; `keep` then moves the accepted rows to the front of that space and advances the length.
Whatever else was written there is garbage that the next forward overwrites.

Dimension key: B batch · T new rows · C capacity · S used length · N key/value heads · D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch

Slots = torch.Tensor | Sequence[Sequence[int]]
"""`[B, A]` places among the rows written last, on the cache's device or on the host."""


class LayerShape(NamedTuple):
    """Shape of one layer's cache rows."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class _Store(NamedTuple):
    """One tensor each for the keys and values of all layers that share a shape."""

    keys: torch.Tensor  # [layers, B, N, C, D]
    values: torch.Tensor  # [layers, B, N, C, D]


class Allocation:
    """The memory behind a cache and all its views."""

    def __init__(
        self,
        layout: tuple[LayerShape, ...],
        batch_size: int,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        block: int,
    ) -> None:
        self.layout = layout
        self.lengths = [0] * batch_size
        self.capacity = capacity
        self._num_places = batch_size
        self._block = block
        self._dtype, self._device = dtype, device
        self.stores = self._allocate(capacity)
        self._places: list[tuple[LayerShape, int]] = []
        for layer, shape in enumerate(layout):
            self._places.append((shape, layout[:layer].count(shape)))

    @property
    def device(self) -> torch.device:
        return self._device

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        shape, place = self._places[index]
        store = self.stores[shape]
        return store.keys[place], store.values[place]

    def add_row(self) -> None:
        """Room for one more sequence, and for some that may follow: few of them move the rest."""
        rows = len(self.lengths) + 1
        if rows <= self._num_places:
            self.lengths.append(0)
            return
        self._num_places = rows + rows // 4
        self.resize(rows, self.capacity)

    def resize(self, batch_size: int, capacity: int) -> None:
        """Move to a larger allocation; what is committed stays."""
        old, rows = self.stores, len(self.lengths)
        self._num_places = max(self._num_places, batch_size)
        used = min(self.in_blocks(max(self.lengths)), self.capacity, capacity)
        self.lengths += [0] * (batch_size - rows)
        self.capacity = capacity
        self.stores = self._allocate(capacity)
        for shape, store in self.stores.items():
            store.keys[:, :rows, :, :used] = old[shape].keys[:, :rows, :, :used]
            store.values[:, :rows, :, :used] = old[shape].values[:, :rows, :, :used]

    def in_blocks(self, length: int) -> int:
        """Rows that must be moved to move so many."""
        return -(-length // self._block) * self._block

    def _allocate(self, capacity: int) -> dict[LayerShape, _Store]:
        stores = {}
        for shape in dict.fromkeys(self.layout):
            front = (self.layout.count(shape), self._num_places, shape.num_kv_heads, capacity)
            # Zeros, not empty: a masked row is multiplied by 0, and 0 · NaN is NaN.
            stores[shape] = _Store(
                torch.zeros(*front, shape.key_dim, dtype=self._dtype, device=self._device),
                torch.zeros(*front, shape.value_dim, dtype=self._dtype, device=self._device),
            )
        return stores


class KVCache:
    """Keys and values of a batch of sequences, `[B, N, C, D]` per layer.

    `view` gives some of the sequences as a cache that shares memory and lengths: a prefill works
    on one row, a step on the rows in use. Layers of equal shape live in one tensor, so that
    `keep` is one copy for all of them.
    """

    block = 1
    """Rows that lie in memory as one piece"""

    def __init__(self, allocation: Allocation, start: int, stop: int) -> None:
        self._allocation = allocation
        self._rows = range(start, stop)
        self._latest_slots: tuple[tuple[list[int], int], torch.Tensor, torch.Tensor] | None = None

    @classmethod
    def allocate(
        cls,
        layout: Sequence[LayerShape],
        batch_size: int,
        capacity: int,
        *,
        dtype: torch.dtype,
        device: torch.device,
    ) -> Self:
        """Room for `capacity` tokens, drafts included, of each of `batch_size` sequences."""
        allocation = Allocation(tuple(layout), batch_size, capacity, dtype, device, cls.block)
        return cls(allocation, 0, batch_size)

    def view(self, start: int, stop: int) -> Self:
        """The sequences `start` to `stop` of this cache, sharing its memory and lengths."""
        first = self._rows.start
        return type(self)(self._allocation, first + start, first + stop)

    @property
    def batch_size(self) -> int:
        return len(self._rows)

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each sequence, on the host."""
        return self._allocation.lengths[self._rows.start : self._rows.stop]

    @property
    def length(self) -> int:
        """Committed tokens of the only sequence."""
        assert len(self._rows) == 1, "length is for one sequence; use lengths"
        return self._allocation.lengths[self._rows.start]

    @property
    def capacity(self) -> int:
        """Rows that each sequence can hold, drafts included."""
        return self._allocation.capacity

    @property
    def device(self) -> torch.device:
        return self._allocation.device

    @property
    def num_bytes(self) -> int:
        stores = self._allocation.stores.values()
        return sum(t.numel() * t.element_size() for store in stores for t in store)

    def reserve(self, capacity: int) -> None:
        """Make room for `capacity` rows a sequence; what is committed stays.

        Doubles, so that growth costs a constant per token.
        """
        if capacity > self.capacity:
            batch_size = len(self._allocation.lengths)
            self._allocation.resize(batch_size, max(capacity, 2 * self.capacity))

    def add_row(self) -> None:
        """Make room for one more sequence. Only the whole cache can grow, not a view."""
        assert len(self._rows) == len(self._allocation.lengths), "a view cannot add rows"
        self._allocation.add_row()
        self._rows = range(len(self._rows) + 1)

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `[B, N, C, D]` of one layer, garbage behind each length included."""
        keys, values = self._allocation.layer(index)
        return keys[self._rows.start : self._rows.stop], values[self._rows.start : self._rows.stop]

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[B, N, T, D]` behind each committed part; return views up to the used length.

        `transformers` calls this once a layer; the name and the form are its own.
        """
        keys, values = self.layer(layer_idx)
        lengths, rows = self.lengths, key_states.shape[2]
        longest = max(lengths)
        used = longest + rows
        assert used <= self.capacity, "reserve comes before the forward"
        if min(lengths) == longest:
            keys[:, :, longest:used] = key_states
            values[:, :, longest:used] = value_states
        else:
            batch, slots = self._ragged_slots(lengths, rows)
            keys[batch, :, slots] = key_states.transpose(1, 2)
            values[batch, :, slots] = value_states.transpose(1, 2)
        return keys[:, :, :used], values[:, :, :used]

    def _ragged_slots(self, lengths: list[int], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Where the new rows of unequally long sequences go: `[B, 1]` and `[B, T]`.

        Every layer of a forward asks for the same.
        """
        if self._latest_slots is None or self._latest_slots[0] != (lengths, rows):
            starts = torch.tensor(lengths, device=self.device)[:, None]
            slots = starts + torch.arange(rows, device=self.device)
            batch = torch.arange(len(lengths), device=self.device)[:, None]
            self._latest_slots = (lengths, rows), batch, slots
        return self._latest_slots[1:]

    def keep(self, slots: Slots, counts: Sequence[int]) -> None:
        """Commit, of the rows written last, `slots[b, :counts[b]]` of each sequence, in that order.

        Args:
            slots: ascending, the root's 0 first.
            counts: how many of them are real for each sequence; 0 leaves it as it was.
        """
        for row, (length, count) in enumerate(zip(self.lengths, counts, strict=True)):
            if count > 1:  # the root is written first and stays where it is
                source = length + torch.as_tensor(slots[row][1:count], device=self.device)
                aim = slice(length + 1, length + count)
                for store in self._allocation.stores.values():
                    for tensor in store:
                        lane = tensor[:, self._rows.start + row]
                        lane[:, :, aim] = lane[:, :, source]
        self.advance(counts)

    def advance(self, counts: Sequence[int]) -> None:
        """Commit the first `counts[b]` rows written last, as they lie (prefill)."""
        for row, count in zip(self._rows, counts, strict=True):
            self._allocation.lengths[row] += count

    def truncate(self, row: int, length: int) -> None:
        """Forget everything of one sequence behind its first `length` tokens."""
        assert 0 <= length <= self.lengths[row], "truncate cannot add tokens"
        self._allocation.lengths[self._rows.start + row] = length

    def copy_row(self, source: int, target: int) -> None:
        """Overwrite sequence `target` with sequence `source` (the last moves into a gap)."""
        source, target = self._rows[source], self._rows[target]
        length = self._allocation.lengths[source]
        used = self._allocation.in_blocks(length)
        for store in self._allocation.stores.values():
            for tensor in store:
                tensor[:, target, :, :used] = tensor[:, source, :, :used]
        self._allocation.lengths[target] = length

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Committed tokens of the longest sequence (asked by `transformers`)."""
        return max(self.lengths)
