"""The target by kernels of our own: Llama-like layers, near the speed of memory.

Knows: what a step hands to the kernels. Does not know: how they compute, trees, sampling.

A row has the same bits in any company, at any length (`linear.h`, `attention.h`): verified by a
tree, decoded plainly, or in a prompt.

Dimension key: B batch · T rows · H hidden size · V vocabulary.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from entmtp.data.cache import Progress
from entmtp.errors import ModelRefused
from entmtp.target.cache import KVCache
from entmtp.target.code import code_digest
from entmtp.target.model import TargetModel
from entmtp.target.runtimes.native.cache import NativeCache
from entmtp.target.runtimes.native.forward import PackedDecoder
from entmtp.target.runtimes.native.library import (
    PackedMatrix,
    address,
    kernels,
    kernels_folder,
    prepare,
)
from entmtp.target.runtimes.native.remembered import RememberedModel
from entmtp.target.runtimes.native.smoothing import factors_of
from entmtp.target.runtimes.native.weights import misfit
from entmtp.target.runtimes.one_thread import torch_on_one_thread

if TYPE_CHECKING:
    from entmtp.target.plain import PlainCache

FORMATS = ("int8", "bfloat16")
_EXACT_LENGTH = 1 << 30
"""Rows are computed alone: no length is special."""
_ROWS_AT_ONCE = 16


class NativeTarget(TargetModel):
    """A `TargetModel` whose forward is one call of a kernel."""

    runtime = "native"
    exact_length = _EXACT_LENGTH
    rows_at_once = _ROWS_AT_ONCE
    has_float32_twin = False

    def __init__(self, target: TargetModel, number_format: str, progress: Progress) -> None:
        """Pack the weights of `target`.

        Raises:
            BadInput: the processor or the compiler will not do.
            FetchError: the kernels cannot be put into the cache.
            ModelRefused: the model's layers are of another kind.
        """
        super().__init__(target.unmodified)
        assert number_format in FORMATS, "asked before"
        if reason := misfit(target):
            raise ModelRefused(
                f"the native runtime cannot be used: {reason}; use another --runtime"
            )
        prepare(progress)
        factors = factors_of(target, progress) if number_format == "int8" else None
        progress(f"packing the weights of {target.name} for {number_format}")
        self._number_format = number_format
        self._num_threads = torch.get_num_threads()
        known = target.unmodified
        body = known.body() if isinstance(known, RememberedModel) else self._body
        self._decoder = PackedDecoder(
            body, self.layout[0], self._num_threads, number_format, self.embedding_weight, factors
        )
        with torch_on_one_thread():
            self._output = PackedMatrix(
                self.output_weight,
                self.output_bias,
                self._num_threads,
                number_format=number_format,
            )
        self.check_mark = _check_mark(target, number_format)

    @property
    def number_format(self) -> str:
        return self._number_format

    def new_cache(self, batch_size: int, capacity: int) -> NativeCache:
        del capacity  # it grows with what is committed
        return NativeCache.of(self.layout, batch_size)

    def forward(
        self,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        assert isinstance(cache, NativeCache), "a cache of new_cache"
        return self._decoder.run_ids(ids, positions, among, cache)

    def at_work(self) -> AbstractContextManager[None]:
        return torch_on_one_thread()

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._output_layer.finish(self._output(hidden.contiguous(), self._num_threads))

    @property
    def largest_logits(self) -> Callable[[torch.Tensor], Sequence[int]] | None:
        # A scale or a soft cap may round two logits to the same number.
        return self._largest if self._output_layer.is_last else None

    def _largest(self, hidden: torch.Tensor) -> Sequence[int]:
        return self._output.largest(hidden.contiguous(), self._num_threads)

    def root_signals(self, logits: torch.Tensor) -> torch.Tensor:
        logits = logits.contiguous()
        signals = torch.empty(len(logits), 2)
        kernels().entmtp_root_signals(
            address(logits), *logits.shape, address(signals), self._num_threads
        )
        return signals

    @property
    def gumbel_noise(self) -> Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]:
        return self._noise

    def _noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        seeds, positions = seeds.contiguous(), positions.contiguous()
        noise = torch.empty(len(seeds), vocab_size)
        kernels().entmtp_noise(
            address(seeds), address(positions), *noise.shape, address(noise), self._num_threads
        )
        return noise


def _check_mark(target: TargetModel, number_format: str) -> Path:
    """Beside the kernels, by all else that the outcome of a self-check hangs on."""
    what = "\n".join(
        [target.fingerprint, number_format, target.unmodified.config_json, code_digest()]
    )
    return kernels_folder() / f"checked-{hashlib.sha256(what.encode()).hexdigest()[:16]}"
