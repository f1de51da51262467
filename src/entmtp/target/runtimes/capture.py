"""Functions of tensors made into CUDA graphs, one for each set of shapes.

Knows: static inputs and outputs, capturing, replaying. Does not know: what a function computes.

Replaying a graph runs the same kernels on the same addresses. So what goes in is copied to *static*
tensors first, and what comes out lies in static tensors that the next replay overwrites. Those are
ordinary memory: the graphs of one `Captures` share a pool for what lies between, and may then be
replayed in any order.

A function that can be captured is *graph-safe*: its shapes follow from its inputs' shapes, and it
reads no value of a tensor on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import torch

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., Tensors]
"""Tensors in, tensors out."""

_WARM_UPS = 2
"""Runs in front of a capture: libraries allocate and choose kernels in the first ones."""


class Recorder(Protocol):
    """Makes work repeatable: what it records is done by calling what it returns."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]: ...


class CudaRecorder:
    """Records a CUDA graph; all of its graphs share one pool of memory."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            work()
        replay: Callable[[], None] = graph.replay
        return replay


class DirectRecorder:
    """Records nothing and does the work again: what a graph computes, where there are none."""

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


class Memory(Protocol):
    """What a cache lies in; it may move to grow."""

    lengths: list[int]
    capacity: int


class Place(NamedTuple):
    """Names the addresses of some sequences' rows."""

    memory: Memory
    num_sequences: int
    """That it has room for"""
    capacity: int
    start: int

    @property
    def is_left(self) -> bool:
        """Whether the memory has moved, so that nobody asks for this place again."""
        now = len(self.memory.lengths), self.memory.capacity
        return now != (self.num_sequences, self.capacity)


class Captured:
    """One function for one set of shapes."""

    def __init__(self, function: Function, examples: Sequence[torch.Tensor], record: Recorder):
        """
        Args:
            examples: inputs that the function can be run with several times without harm.
        """
        with torch.inference_mode(False):  # what is kept may be written in any mode
            self._inputs = tuple(example.clone() for example in examples)
        self._outputs: Tensors = ()
        self._function = function
        on_the_side(self._warm_up, self._inputs[0].device)
        self._replay = record(self._work)

    def _warm_up(self) -> None:
        for _ in range(_WARM_UPS):
            results = self._function(*self._inputs)
        with torch.inference_mode(False):
            self._outputs = tuple(torch.empty_like(result) for result in results)

    def _work(self) -> None:
        for output, result in zip(self._outputs, self._function(*self._inputs), strict=True):
            output.copy_(result)

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """The static outputs, which hold until the next call.

        A tensor smaller than its example lies in front; what was behind it stays.
        """
        for static, given in zip(self._inputs, tensors, strict=True):
            static[tuple(slice(size) for size in given.shape)].copy_(given)
        self._replay()
        return self._outputs


class Captures:
    """The graphs of a target or of the steps around it, by what tells them apart."""

    def __init__(self, record: Recorder) -> None:
        self.record = record
        self.num_captured = 0
        """A step that captures is slow: this must not rise after the warm-up"""
        self._by_key: dict[tuple[Hashable, ...], Captured] = {}

    def call(
        self,
        key: tuple[Hashable, ...],
        function: Function,
        tensors: Sequence[torch.Tensor],
        examples: Callable[[], Sequence[torch.Tensor]] | None = None,
    ) -> Tensors:
        """`function(*tensors)` by its graph, captured at the first call with this key.

        Args:
            key: whatever the function depends on besides its inputs, and their shapes.
            examples: makes inputs to capture with, where `tensors` may be smaller at another time,
                or where running the function twice with them would do harm.
        """
        if key not in self._by_key:
            self._forget_left()
            given = tensors if examples is None else examples()
            self._by_key[key] = Captured(function, given, self.record)
            self.num_captured += 1
        return self._by_key[key](*tensors)

    def _forget_left(self) -> None:
        """Drop graphs whose memory has moved; their tensors are of no use any more."""
        left = [k for k in self._by_key if any(isinstance(p, Place) and p.is_left for p in k)]
        for key in left:
            del self._by_key[key]


def on_the_side(work: Callable[[], None], device: torch.device) -> None:
    """Do work in another stream than the one that is captured, as CUDA graphs want it."""
    if device.type != "cuda":
        work()
        return
    here = torch.cuda.current_stream(device)
    side = _side_stream(device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        work()
    here.wait_stream(side)


@lru_cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Always the same: each stream keeps memory of its own."""
    return torch.cuda.Stream(device)


def sent(values: Any, device: torch.device) -> torch.Tensor:
    """Int64 values on a device, without waiting for it: through pinned memory."""
    if device.type != "cuda":
        return torch.tensor(values, dtype=torch.long)
    pinned = torch.tensor(values, dtype=torch.long, pin_memory=True)
    return pinned.to(device, non_blocking=True)
