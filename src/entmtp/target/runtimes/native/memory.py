"""Memory for packed weights, in large pages where the system has them.

Knows: how to ask for it. Does not know: what lies in it.

A step reads all weights once. In pages of 4 KB that is one address to be looked up for every
fourth block of outputs; in pages of 2 MB it is none to speak of.
"""

from __future__ import annotations

import mmap

import torch

_CHUNK = 64 << 20
_ALIGNMENT = 64
_space: list[torch.Tensor] = []
"""What is left of the latest chunk; a chunk lives as long as anything in it."""


def packed_memory(num_bytes: int) -> torch.Tensor:
    """Bytes at an address that is a multiple of a cache line."""
    wanted = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    if not _space or len(_space[0]) < wanted:
        _space[:] = [_chunk(max(wanted, _CHUNK))]
    memory, _space[0] = _space[0][:num_bytes], _space[0][wanted:]
    return memory


def _chunk(num_bytes: int) -> torch.Tensor:
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)
