"""Compiled copies of a graph, one for each number of rows in use.

Knows: OpenVINO requests, memory handed over by address, and what changing sizes costs. Does not
know: what the graph computes.

A graph with free sizes runs with any, but every change of them costs it about as much as half a
step. So a *lane*, a compiled copy, is kept for each number of rows that a policy uses, made before
the first request (`add`); sizes without a lane take turns in the one used longest ago.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

MAX_LANES = 8
"""A lane holds the weights in the form that its kernels read: memory, about the file's size."""


class Lane:
    """One compiled copy."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self.sizes: tuple[int, ...] = ()
        """Sizes of the latest first input"""
        self._held: dict[int, torch.Tensor] = {}

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        """Compute `outputs` in place, without a copy of anything."""
        self.sizes = tuple(inputs[0].shape)
        for place, tensor in enumerate(inputs):
            self._hold(place, tensor)
        for place, tensor in enumerate(outputs):
            self._request.set_output_tensor(place, _shared(tensor))
        self._request.infer()

    def _hold(self, place: int, tensor: torch.Tensor) -> None:
        """Hand an input over, unless the request has that memory already.

        The tensor is held here: the request knows its address only.
        """
        held = self._held.get(place)
        if held is None or (held.data_ptr(), held.shape) != (tensor.data_ptr(), tensor.shape):
            self._request.set_input_tensor(place, _shared(tensor))
            self._held[place] = tensor


class Lanes:
    """The lanes of one graph."""

    def __init__(self, graph: Any, settings: Mapping[str, object], blobs: Path) -> None:
        """
        Args:
            blobs: folder in which compiled code is kept, so that the next process starts faster.
        """
        self._graph = graph
        self._settings = {**settings, "CACHE_DIR": str(blobs)}
        self._by_last_use: list[Lane] = []
        self.add()

    def __len__(self) -> int:
        return len(self._by_last_use)

    def add(self) -> None:
        """Compile one more copy, if there may be more."""
        import openvino as ov

        if len(self) < MAX_LANES:
            compiled = ov.Core().compile_model(self._graph, "CPU", self._settings)
            self._by_last_use.insert(0, Lane(compiled.create_infer_request()))

    def lane(self, *sizes: int) -> Lane:
        """The lane that ran these sizes of the first input last, or else the one least in use."""
        found = next((lane for lane in self._by_last_use if lane.sizes == sizes), None)
        lane = found or self._by_last_use[0]
        self._by_last_use.remove(lane)
        self._by_last_use.append(lane)
        return lane


def _shared(tensor: torch.Tensor) -> Any:
    """The same memory as an `openvino.Tensor`, without holding it."""
    import openvino as ov

    assert tensor.is_contiguous(), "a copy would be gone before it is read"
    if tensor.dtype == torch.bfloat16:
        array = tensor.view(torch.uint16).numpy()
        return ov.Tensor(array, ov.Shape(array.shape), ov.Type.bf16)
    return ov.Tensor(tensor.numpy(), shared_memory=True)
