"""A key/value cache that is written only when rows are kept.

Knows: the rows of the latest forward, held apart, and the blocks in which memory grows. Does not
know: graphs, trees, who accepted what.

A runtime whose graph takes past rows and returns new ones needs no room for drafts in the cache:
`offer` lays the new rows beside it, and `keep` copies those that were accepted behind the
committed part. The graph reads a sequence's whole memory, so memory follows the longest committed
length in blocks: few sizes of tensors, and attention pays for no more than a block too much.

Dimension key: B batch · T new rows · C capacity · N key/value heads · D head size · L layers of
one shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import torch

from entmtp.target.cache import KVCache, Slots

HIDDEN = torch.finfo(torch.float32).min
"""What is added to the score of a key that a row may not see."""
BLOCK = 128
"""Rows by which memory grows while it is small; later an eighth of it, or less."""

NewRows = Sequence[tuple[torch.Tensor, torch.Tensor]]
"""New keys and values `[L, B, N, T, D]` for each shape of layers, in the order of the cache."""


class _Mask(NamedTuple):
    """The last mask that was made, and what it followed from."""

    lengths: list[int]
    among: torch.Tensor
    capacity: int
    numbers: torch.Tensor


class LateCache(KVCache):
    """A `KVCache` of which all rows but the committed ones are elsewhere."""

    _offered: NewRows = ()
    _memory: list[torch.Tensor] | None = None
    _latest_mask: _Mask | None = None

    def view(self, start: int, stop: int) -> Self:
        first = self._rows.start
        if range(first + start, first + stop) == self._rows:
            return self
        return super().view(start, stop)

    def reserve(self, capacity: int) -> None:
        """Nothing: memory that is not used yet would cost time in every step."""

    def memory(self) -> list[torch.Tensor]:
        """Keys of each layer, then values: `[B, N, C, D]`, contiguous, garbage included."""
        front = self.layer(0)[0]
        if self._memory is None or self._memory[0].data_ptr() != front.data_ptr():
            layers = [self.layer(index) for index in range(len(self._allocation.layout))]
            self._memory = [keys for keys, _ in layers] + [values for _, values in layers]
        return self._memory

    def mask(self, among: torch.Tensor) -> torch.Tensor:
        """What each of T new rows sees, as numbers to add: `[B, T, T]` to `[B, 1, T, C + T]`.

        The committed rows are in front, then the new ones. It is good until the next call; the
        same tensor stands for the same rows.
        """
        latest, lengths = self._latest_mask, self.lengths
        if (
            latest is not None
            and latest.among is among
            and latest.capacity == self.capacity
            and len(lengths) == len(latest.lengths) == 1
            and latest.lengths <= lengths
        ):
            latest.numbers[..., latest.lengths[0] : lengths[0]] = 0
        else:
            latest = _Mask(lengths, among, self.capacity, self._new_mask(lengths, among))
        self._latest_mask = latest._replace(lengths=lengths)
        return latest.numbers

    def _new_mask(self, lengths: Sequence[int], among: torch.Tensor) -> torch.Tensor:
        batch, rows, _ = among.shape
        numbers = torch.zeros(batch, 1, rows, self.capacity + rows)
        for row, length in enumerate(lengths):
            numbers[row, :, :, length : self.capacity] = HIDDEN
        numbers[:, 0, :, self.capacity :].masked_fill_(~among, HIDDEN)
        return numbers

    def offer(self, rows: NewRows) -> None:
        """Take what a forward computed; it is forgotten at the next one unless it is kept."""
        self._offered = rows

    def keep(self, slots: Slots, counts: Sequence[int]) -> None:
        self._commit(counts, slots)

    def advance(self, counts: Sequence[int]) -> None:
        self._commit(counts, None)

    def _commit(self, counts: Sequence[int], slots: Slots | None) -> None:
        """Copy offered rows behind the committed ones: those in `slots` `[B, A]`, or the first."""
        self._fit(max(n + count for n, count in zip(self.lengths, counts, strict=True)))
        stores = self._allocation.stores.values()
        for row, (place, kept) in enumerate(zip(self._rows, runs_of(counts, slots), strict=True)):
            for start, stop in kept:
                length = self._allocation.lengths[place]
                aim = slice(length, length + stop - start)
                for store, offered in zip(stores, self._offered, strict=True):
                    for tensor, new in zip(store, offered, strict=True):
                        tensor[:, place, :, aim] = new[:, row, :, start:stop]
                self._allocation.lengths[place] = aim.stop

    def truncate(self, row: int, length: int) -> None:
        super().truncate(row, length)
        longest = max(self._allocation.lengths)
        if 2 * self._rows_for(longest) <= self.capacity:
            self._fit(longest, shrink=True)

    def _fit(self, longest: int, shrink: bool = False) -> None:
        if longest > self.capacity or shrink:
            self._allocation.resize(len(self._allocation.lengths), self._rows_for(longest))

    def _rows_for(self, longest: int) -> int:
        return rows_for(longest)


def runs_of(counts: Sequence[int], slots: Slots | None) -> Iterator[Sequence[tuple[int, int]]]:
    """Of each sequence, which rows are kept, as bounds of those that lie side by side.

    To copy a few slices takes less time than to gather rows.
    """
    if slots is None:
        yield from ([(0, count)] for count in counts)
        return
    for row, count in zip(on_host(slots), counts, strict=True):
        runs: list[tuple[int, int]] = []
        for slot in row[:count]:
            if runs and runs[-1][1] == slot:
                runs[-1] = runs[-1][0], slot + 1
            else:
                runs.append((slot, slot + 1))
        yield runs


def on_host(slots: Slots) -> Sequence[Sequence[int]]:
    """Slots as numbers of Python."""
    if isinstance(slots, torch.Tensor):
        rows: list[list[int]] = slots.tolist()
        return rows
    return slots


def rows_for(longest: int) -> int:
    """Rows of memory for `longest` committed ones: a multiple of the block at that size."""
    block = BLOCK << max(0, (longest // (8 * BLOCK)).bit_length() - 1)
    return -(-max(longest, 1) // block) * block
