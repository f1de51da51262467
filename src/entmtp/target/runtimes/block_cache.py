"""A cache that holds finished blocks of positions apart from the unfinished one.

Knows: where a sequence's rows lie for attention by blocks (`blocks`), and when a block is
finished. Does not know: graphs, trees, who accepted what.

A sequence of n tokens has n // P finished blocks, and n % P rows in its tail. Rows are committed to
the tail; once that is full it is copied to the blocks. A graph reads all memory of the blocks, so
that follows the longest sequence, and where nothing is finished there is none.

Dimension key: B batch · A kept rows · T new rows · M finished blocks in memory · P positions of a
block · N key/value heads · D head size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import is_not
from typing import NamedTuple, Self

import torch

from entmtp.target.cache import KVCache, LayerShape, Slots
from entmtp.target.runtimes.blocks import BLOCK_SIZE, SUM_WIDTH
from entmtp.target.runtimes.late_cache import HIDDEN, LateCache, NewRows, rows_for, runs_of

_MOST_KEPT_ROWS = 64
"""New rows of a forward whose memory is kept for the next one: those of trees."""


class Visibility(NamedTuple):
    """What new rows see."""

    mask: torch.Tensor
    """Of the tail and of the new rows, as numbers to add: `[B, 1, T, P + T]`"""
    unfinished: torch.Tensor
    """The blocks that all rows see, likewise: `[B, 1, M, 1, 1]`"""
    inside: torch.Tensor
    """1 for a new row whose position is in the tail's block, else 0: `[B, 1, T, 1]`"""


class _Latest(NamedTuple):
    """What was visible to the rows of the last forward, and what it followed from."""

    lengths: list[int]
    among: torch.Tensor
    seen: Visibility


class BlockCache(LateCache):
    """A `LateCache` in two parts; its memory and capacity are those of the finished blocks."""

    _tails: KVCache
    """Tails of all sequences, with their own lengths."""
    _rooms: dict[tuple[int, int], NewRows]
    """Memory that was given out, by sequences and rows."""
    _latest: _Latest | None = None
    _handed: tuple[object, object] = (None, None)
    """What `_memory` was made of."""

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
        cache = super().allocate(layout, batch_size, capacity, dtype=dtype, device=device)
        cache._tails = KVCache.allocate(layout, batch_size, BLOCK_SIZE, dtype=dtype, device=device)
        cache._rooms = {}
        cache._write_ones()
        return cache

    def view(self, start: int, stop: int) -> Self:
        view = super().view(start, stop)
        if view is self:
            return self
        view._tails, view._rooms = self._tails, {}
        return view

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._tails.num_bytes

    def memory(self) -> list[torch.Tensor]:
        """Finished keys of each layer, then values: `[B, N, M, P, D]`; the tails' likewise,
        `[B, N, P, D]`. Contiguous, garbage included."""
        stores = self._allocation.stores, self._tails._allocation.stores
        if self._memory is None or any(map(is_not, self._handed, stores)):
            self._handed = stores  # they are others whenever memory has moved
            tails = self._tails.view(self._rows.start, self._rows.stop)
            places = range(len(self._allocation.layout))
            finished = [self.layer(place) for place in places]
            unfinished = [tails.layer(place) for place in places]
            self._memory = [
                *(_in_blocks(pair[part]) for part in (0, 1) for pair in finished),
                *(pair[part] for part in (0, 1) for pair in unfinished),
            ]
        return self._memory

    def visibility(self, among: torch.Tensor, positions: torch.Tensor) -> Visibility:
        """What each of new rows sees, and where it belongs; good until the next call.

        Args:
            among: `[B, A, A]` of the first A rows; further ones are padding that sees everything
                and that nobody sees. The same tensor stands for the same tree.
            positions: `[B, T]`, none of them T or more behind the committed part.
        """
        seen = self._uncovered(among, positions.shape) or self._seen(among, positions)
        self._latest = _Latest(self.lengths, among, seen)
        return seen

    def _uncovered(self, among: torch.Tensor, shape: torch.Size) -> Visibility | None:
        """The last visibility with what was committed since, where that is all the difference:
        the same tree of a single sequence, within one block."""
        latest, lengths = self._latest, self.lengths
        if latest is None or latest.among is not among or len(lengths) > 1:
            return None
        seen, place = latest.seen, lengths[0] % BLOCK_SIZE
        num_new = lengths[0] - latest.lengths[0]
        is_alike = (
            len(latest.lengths) == 1
            and shape[1] == seen.inside.shape[2]
            and seen.unfinished.shape[2] == self.capacity // BLOCK_SIZE
            and 0 <= num_new <= place
            and place + shape[1] <= BLOCK_SIZE
        )
        if not is_alike:
            return None
        seen.mask[..., place - num_new : place] = 0
        return seen

    def _seen(self, among: torch.Tensor, positions: torch.Tensor) -> Visibility:
        batch, rows = positions.shape
        mask = torch.zeros(batch, 1, rows, BLOCK_SIZE + rows)
        unfinished = torch.zeros(batch, 1, self.capacity // BLOCK_SIZE, 1, 1)
        inside = torch.empty(batch, 1, rows, 1)
        for row, length in enumerate(self.lengths):
            number, place = divmod(length, BLOCK_SIZE)
            mask[row, :, :, place:BLOCK_SIZE] = HIDDEN
            unfinished[row, :, number:] = HIDDEN
            inside[row, 0, :, 0] = positions[row] < (number + 1) * BLOCK_SIZE
        real = among.shape[1]
        new = mask[:, 0, :real, BLOCK_SIZE:]
        if real > 1:
            new[..., :real].masked_fill_(~among, HIDDEN)
        if real < rows:
            new[..., real:] = HIDDEN
        return Visibility(mask, unfinished, inside)

    def room_for(self, rows: int) -> NewRows:
        """Memory for the new rows of a forward, to be offered then: the last one's, if that had
        as many."""
        room = self._rooms.get((self.batch_size, rows))
        if room is None:
            stores = self._allocation.stores.items()
            room = [self._room(shape, rows, store.keys) for shape, store in stores]
            if rows <= _MOST_KEPT_ROWS:
                self._rooms[self.batch_size, rows] = room
        return room

    def _room(
        self, shape: LayerShape, rows: int, like: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        front = (len(like), self.batch_size, shape.num_kv_heads, rows)
        value_dim = shape.value_dim - SUM_WIDTH
        return like.new_empty(*front, shape.key_dim), like.new_empty(*front, value_dim)

    def _commit(self, counts: Sequence[int], slots: Slots | None) -> None:
        for row, kept in enumerate(runs_of(counts, slots)):
            for start, stop in kept:
                while start < stop:
                    room = BLOCK_SIZE - self.lengths[row] % BLOCK_SIZE
                    end = min(stop, start + room)
                    self._append(row, slice(start, end))
                    start = end

    def _append(self, row: int, kept: slice) -> None:
        """Copy some of the offered rows to a tail, and that to the blocks once it is full."""
        place, length = self._rows[row], self.lengths[row]
        count = kept.stop - kept.start
        aim = slice(length % BLOCK_SIZE, length % BLOCK_SIZE + count)
        stores = self._tails._allocation.stores.values()
        for store, offered in zip(stores, self._offered, strict=True):
            for tensor, new in zip(store, offered, strict=True):
                tensor[:, place, :, aim, : new.shape[-1]] = new[:, row, :, kept]
        self._count(row, length + count)
        if aim.stop == BLOCK_SIZE:
            self._fit(self.lengths[row])
            for block, tail in self._block_and_tail(row, length // BLOCK_SIZE):
                block.copy_(tail)

    def truncate(self, row: int, length: int) -> None:
        number = length // BLOCK_SIZE
        if number < self.lengths[row] // BLOCK_SIZE:
            for block, tail in self._block_and_tail(row, number):
                tail.copy_(block)
        super().truncate(row, length)
        self._count(row, length)

    def _count(self, row: int, length: int) -> None:
        place = self._rows[row]
        self._allocation.lengths[place] = length
        self._tails._allocation.lengths[place] = length % BLOCK_SIZE

    def _block_and_tail(self, row: int, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """One finished block of a sequence beside its tail, in every tensor: `[L, N, P, D]`."""
        place, start = self._rows[row], number * BLOCK_SIZE
        tails = self._tails._allocation.stores
        for shape, store in self._allocation.stores.items():
            for tensor, tail in zip(store, tails[shape], strict=True):
                yield tensor[:, place, :, start : start + BLOCK_SIZE], tail[:, place]

    def copy_row(self, source: int, target: int) -> None:
        super().copy_row(source, target)
        self._tails.copy_row(self._rows[source], self._rows[target])

    def add_row(self) -> None:
        super().add_row()
        self._tails.add_row()
        self._write_ones()

    def _write_ones(self) -> None:
        """Fill the columns of values that sum weights, once: a commit leaves them alone."""
        for store in self._tails._allocation.stores.values():
            store.values[..., -SUM_WIDTH:] = 1

    def _rows_for(self, longest: int) -> int:
        """Whole blocks: memory grows by as many rows as one has, or a multiple."""
        finished = longest // BLOCK_SIZE * BLOCK_SIZE
        return rows_for(finished) if finished else 0


def _in_blocks(tensor: torch.Tensor) -> torch.Tensor:
    """`[B, N, M·P, D]` as `[B, N, M, P, D]`."""
    batch, heads, capacity, size = tensor.shape
    return tensor.view(batch, heads, capacity // BLOCK_SIZE, BLOCK_SIZE, size)
