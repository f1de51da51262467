"""Compiled copies of a graph, one for each size in frequent use.

Knows: OpenVINO requests, memory handed over by address, and what free sizes cost. Does not know:
what the graph computes.

A graph whose sizes are free runs with any, but asks each of its nodes for its sizes in every run:
some five milliseconds for thirty layers, and as many again when they change. So `pin` compiles a
*lane* for one size of the first input, in which little is left to ask, before the first request;
sizes without one go through a lane that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

MAX_PINNED = 8
"""A lane holds the weights in the form that its kernels read: memory, about the file's size."""

Shapes = Callable[[Sequence[int]], Sequence[Sequence[int]]]
"""Shape of every input for one size of the first; -1 is a size that stays free."""


class Lane:
    """One compiled copy."""

    def __init__(self, request: Any) -> None:
        self._request = request
        # The request knows addresses only: what lies there is held here.
        self._inputs: dict[int, torch.Tensor] = {}
        self._outputs: dict[int, torch.Tensor] = {}
        self._memory: Sequence[torch.Tensor] = ()

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        memory: Sequence[torch.Tensor] = (),
    ) -> None:
        """Compute `outputs` in place.

        To tell a request of an address takes longer than to copy a few numbers.

        Args:
            inputs: small; they are copied to where the last ones were.
            memory: further inputs, behind those, read where they are. The same sequence stands
                for the same tensors.
        """
        for place, tensor in enumerate(inputs):
            self._copy_in(place, tensor)
        if memory is not self._memory:
            for place, tensor in enumerate(memory, start=len(inputs)):
                _hand_over(place, tensor, self._inputs, self._request.set_input_tensor)
            self._memory = memory
        for place, tensor in enumerate(outputs):
            _hand_over(place, tensor, self._outputs, self._request.set_output_tensor)
        # Else a copy of each output would be made for whoever reads what this returns.
        self._request.infer(share_outputs=True)

    def own_output(self, place: int, shape: Sequence[int]) -> torch.Tensor:
        """Float32 memory for an output, which the next run with it overwrites."""
        held = self._outputs.get(place)
        return held if held is not None and held.shape == shape else torch.empty(shape)

    def _copy_in(self, place: int, tensor: torch.Tensor) -> None:
        held = self._inputs.get(place)
        if held is not None and held.shape == tensor.shape:
            held.copy_(tensor)
            return
        with torch.inference_mode(False):  # to be written in any mode
            own = torch.empty(tensor.shape, dtype=tensor.dtype)
        own.copy_(tensor)
        _hand_over(place, own, self._inputs, self._request.set_input_tensor)


def _hand_over(
    place: int,
    tensor: torch.Tensor,
    held: dict[int, torch.Tensor],
    set_tensor: Callable[[int, Any], None],
) -> None:
    """Tell a request of memory that it does not have yet."""
    old = held.get(place)
    if old is tensor:
        return
    if old is None or (old.data_ptr(), old.shape) != (tensor.data_ptr(), tensor.shape):
        set_tensor(place, _shared(tensor))
    held[place] = tensor


class Lanes:
    """The lanes of one graph."""

    def __init__(
        self,
        graph: Any,
        settings: Mapping[str, object],
        blobs: Path,
        shapes: Shapes | None = None,
    ) -> None:
        """
        Args:
            graph: an `openvino.Model`, or the path of one.
            blobs: folder in which compiled code is kept, so that the next process starts faster.
            shapes: what becomes fixed in a pinned lane; else it is one that is free, but in use
                for its size alone.
        """
        import openvino as ov

        self._core = ov.Core()
        self._graph = self._core.read_model(graph) if isinstance(graph, Path) else graph
        self._settings = {**settings, "CACHE_DIR": str(blobs)}
        self._shapes = shapes
        self.max_pinned: int = MAX_PINNED
        self._pinned: dict[tuple[int, ...], Lane] = {}
        self._free = self._compile(self._graph)

    @property
    def pinned(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the first input that have a lane of their own, ascending."""
        return tuple(sorted(self._pinned))

    def pin(self, *sizes: int) -> None:
        """Compile a lane for these sizes of the first input, unless there are enough."""
        import openvino as ov

        if sizes in self._pinned or len(self._pinned) >= self.max_pinned:
            return
        graph = self._graph
        if self._shapes is not None:
            graph = graph.clone()
            shapes = zip(graph.inputs, self._shapes(sizes), strict=True)
            graph.reshape({node: ov.PartialShape(list(shape)) for node, shape in shapes})
        self._pinned[sizes] = self._compile(graph)

    def release(self) -> None:
        """Drop the pinned lanes."""
        self._pinned.clear()

    def lane(self, *sizes: int) -> Lane:
        """The lane for these sizes of the first input."""
        return self._pinned.get(sizes, self._free)

    def _compile(self, graph: Any) -> Lane:
        compiled = self._core.compile_model(graph, "CPU", self._settings)
        return Lane(compiled.create_infer_request())


def _shared(tensor: torch.Tensor) -> Any:
    """The same memory as an `openvino.Tensor`, without holding it."""
    import openvino as ov

    assert tensor.is_contiguous(), "a copy would be gone before it is read"
    if tensor.dtype == torch.bfloat16:
        array = tensor.view(torch.uint16).numpy()
        return ov.Tensor(array, ov.Shape(array.shape), ov.Type.bf16)
    return ov.Tensor(tensor.numpy(), shared_memory=True)
