"""A body's forward as one call of a kernel.

Knows: packed layers, rotary tables, and what a step hands over. Does not know: where hidden states
come from, and what for.

Dimension key: B batch · T rows · H hidden size · N key/value heads · D head size · L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof
from typing import Any

import torch

from entmtp.target.cache import LayerShape
from entmtp.target.runtimes.native.cache import NativeCache, OfferedRows
from entmtp.target.runtimes.native.embedding import EmbeddingRows
from entmtp.target.runtimes.native.library import Step, address, kernels, numbers
from entmtp.target.runtimes.native.smoothing import LayerFactors
from entmtp.target.runtimes.native.weights import pack_layers, rotary_tables
from entmtp.target.runtimes.one_thread import torch_on_one_thread

_FIRST_POSITIONS = 2048
"""Of the rotary tables, which grow."""


class PackedDecoder:
    """Decoder layers and the norm behind them."""

    def __init__(
        self,
        body: Any,
        shape: LayerShape,
        num_threads: int,
        number_format: str = "int8",
        embedding: torch.Tensor | None = None,
        factors: Sequence[LayerFactors] | None = None,
    ) -> None:
        """
        Args:
            body: a module with `layers`, `norm` and `rotary_emb` (`weights`).
            shape: of every layer's cache rows.
            number_format: of the weights, `int8` or `bfloat16`.
            embedding: `[V, H]`, for a body that takes ids.
            factors: of each layer, if its channels are to be made even.
        """
        self._embedding = None if embedding is None else EmbeddingRows(embedding)
        self._rotary_emb = body.rotary_emb
        self._shape = shape
        self._num_threads = num_threads
        # On a busy machine PyTorch's threads wait for one another at each of these small steps.
        with torch_on_one_thread():
            self._packed = pack_layers(
                body, shape.num_kv_heads, num_threads, number_format, factors
            )
        self._tables = rotary_tables(body.rotary_emb, _FIRST_POSITIONS)
        self._num_positions = _FIRST_POSITIONS

    def run_ids(
        self, ids: torch.Tensor, positions: torch.Tensor, among: torch.Tensor, cache: NativeCache
    ) -> torch.Tensor:
        """Hidden states `[B, T, H]` of ids `[B, T]`; else as `run`."""
        assert self._embedding is not None, "a body that takes ids"
        hidden = torch.empty(*ids.shape, self._embedding.struct.size)
        ids = ids.contiguous()
        step = Step(ids=address(ids), embedding=self._embedding.struct)
        self._run(step, hidden, positions, among, cache)
        return hidden

    def run(
        self,
        hidden: torch.Tensor,  # [B, T, H] float32
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool
        cache: NativeCache,
    ) -> None:
        """Turn embeddings into hidden states, in place; offers the cache the new rows."""
        self._run(Step(), hidden, positions, among, cache)

    def _run(
        self,
        step: Step,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        among: torch.Tensor,
        cache: NativeCache,
    ) -> None:
        """`step`: says where the embeddings come from."""
        batch, rows, _ = hidden.shape
        lengths, layer = cache.lengths, self._shape
        starts, places = numbers(lengths), numbers(cache.places)
        positions, among = positions.contiguous(), among.contiguous()
        keys, values = cache.memory_of_all
        cosines, sines = self._rotary(max(lengths) + rows)
        new_rows = OfferedRows.empty(
            self._packed.struct.num_layers, batch, layer.num_kv_heads, rows, layer.key_dim
        )
        step.hidden, step.positions, step.among = map(address, (hidden, positions, among))
        step.cosines, step.sines = address(cosines), address(sines)
        step.lengths, step.places = addressof(starts), addressof(places)
        step.keys, step.values = address(keys), address(values)
        step.new_keys, step.new_values = new_rows.addresses
        step.num_sequences, step.num_rows = batch, rows
        step.num_places, step.capacity = keys.shape[1], cache.capacity
        kernels().entmtp_forward(self._packed.struct, step, self._num_threads)
        cache.offer_rows(new_rows)

    def _rotary(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tables of at least so many positions."""
        if length > self._num_positions:
            self._num_positions = 2 * length
            self._tables = rotary_tables(self._rotary_emb, self._num_positions)
        return self._tables
