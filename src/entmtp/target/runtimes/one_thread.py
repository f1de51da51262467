"""PyTorch beside a runtime whose threads are its own.

Knows: PyTorch's number of threads. Does not know: runtimes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """PyTorch, which does the small rest, on one thread: more would wait for work by spinning, on
    the cores that the runtime's own threads want."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
