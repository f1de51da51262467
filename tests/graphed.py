"""The graphs runtime on a CPU: replaying stands for doing the work again, from and to the same
tensors; and a guard that lets nothing of a tensor be read on the host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from entmtp.engine import Engine
from entmtp.engine.graphed import GraphBatch
from entmtp.target import TargetModel
from entmtp.target.runtimes.capture import DirectRecorder
from entmtp.target.runtimes.graphs import GraphsTarget

_READS = (
    torch.Tensor.tolist,
    torch.Tensor.item,
    torch.Tensor.numpy,
    torch.Tensor.cpu,
    torch.Tensor.__array__,
    torch.Tensor.__bool__,
    torch.Tensor.__int__,
    torch.Tensor.__float__,
    torch.Tensor.__index__,
)
_READING_KERNELS = (
    "item",
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "is_nonzero",
)
"""Of a GPU's tensors these wait for the value, or for a shape that depends on it."""


@lru_cache
def on_graphs(target: TargetModel) -> GraphsTarget:
    return GraphsTarget(target, recorder=DirectRecorder())


def batch_of(engine: Engine) -> GraphBatch:
    batch = engine._loop.batch
    assert isinstance(batch, GraphBatch)
    return batch


class HostRead(AssertionError):
    """A tensor was read on the host."""


class NoHostReads:
    """Inside of `watching`, a read raises; inside of `allowed`, it does not."""

    def __init__(self) -> None:
        self.is_allowed = False
        self.num_allowed = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        with _Functions(self), _Kernels(self):
            yield

    @contextmanager
    def allowed(self) -> Iterator[None]:
        self.is_allowed = True
        self.num_allowed += 1
        try:
            yield
        finally:
            self.is_allowed = False

    def refuse(self, name: str) -> None:
        if not self.is_allowed:
            raise HostRead(name)


class _Functions(TorchFunctionMode):
    """Methods that read memory without a kernel, on a CPU."""

    def __init__(self, guard: NoHostReads) -> None:
        super().__init__()
        self._guard = guard

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        if function in _READS:
            self._guard.refuse(function.__name__)
        return function(*arguments, **(named or {}))


class _Kernels(TorchDispatchMode):
    def __init__(self, guard: NoHostReads) -> None:
        super().__init__()
        self._guard = guard

    def __torch_dispatch__(
        self, kernel: Any, types: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        name = kernel.overloadpacket.__name__
        if name in _READING_KERNELS:
            self._guard.refuse(name)
        if name in ("index", "index_put", "index_put_") and any(
            place is not None and place.dtype in (torch.bool, torch.uint8) for place in arguments[1]
        ):
            self._guard.refuse(f"{name} by a mask")
        return kernel(*arguments, **(named or {}))
