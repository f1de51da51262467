"""A body's forward as one call of a kernel.

Knows: packed layers, rotary tables, and what a step hands over. Does not know: where hidden states
come from, and what for.

Dimension key: B batch · T rows · H hidden size · N key/value heads · D head size · L layers.
"""

from __future__ import annotations

from ctypes import addressof
from typing import Any

import torch

from entmtp.target.cache import LayerShape
from entmtp.target.runtimes.native.cache import NativeCache
from entmtp.target.runtimes.native.library import Step, address, kernels, numbers
from entmtp.target.runtimes.native.weights import pack_layers, rotary_tables
from entmtp.target.runtimes.one_thread import torch_on_one_thread

_FIRST_POSITIONS = 2048
"""Of the rotary tables, which grow."""


class PackedDecoder:
    """Decoder layers and the norm behind them."""

    def __init__(
        self, body: Any, shape: LayerShape, num_threads: int, number_format: str = "int8"
    ) -> None:
        """
        Args:
            body: a module with `layers`, `norm` and `rotary_emb` (`weights`).
            shape: of every layer's cache rows.
            number_format: of the weights, `int8` or `bfloat16`.
        """
        self._rotary_emb = body.rotary_emb
        self._shape = shape
        self._num_threads = num_threads
        # On a busy machine PyTorch's threads wait for one another at each of these small steps.
        with torch_on_one_thread():
            self._packed = pack_layers(body, shape.num_kv_heads, num_threads, number_format)
        self._tables = rotary_tables(body.rotary_emb, _FIRST_POSITIONS)

    def run(
        self,
        hidden: torch.Tensor,  # [B, T, H] float32
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool
        cache: NativeCache,
    ) -> None:
        """Turn embeddings into hidden states, in place; offers the cache the new rows."""
        batch, rows, _ = hidden.shape
        lengths = cache.lengths
        starts, places = numbers(lengths), numbers(cache.places)
        positions, among = positions.contiguous(), among.contiguous()
        keys, values = cache.memory_of_all
        cosines, sines = self._rotary(max(lengths) + rows)
        shape = self._packed.struct.num_layers, batch, self._shape.num_kv_heads, rows
        new_keys = torch.empty(*shape, self._shape.key_dim, dtype=torch.bfloat16)
        new_values = torch.empty_like(new_keys)
        step = Step(
            hidden=address(hidden),
            positions=address(positions),
            among=address(among),
            cosines=address(cosines),
            sines=address(sines),
            lengths=addressof(starts),
            keys=address(keys),
            values=address(values),
            places=addressof(places),
            new_keys=address(new_keys),
            new_values=address(new_values),
            num_sequences=batch,
            num_rows=rows,
            num_places=keys.shape[1],
            capacity=cache.capacity,
        )
        kernels().entmtp_forward(self._packed.struct, step, self._num_threads)
        cache.offer([(new_keys, new_values)])

    def _rotary(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of at least so many positions."""
        if length > len(self._tables[0]):
            self._tables = rotary_tables(self._rotary_emb, 2 * length)
        return self._tables
