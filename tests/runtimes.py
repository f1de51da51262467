"""Tiny targets on every runtime, exported to a folder that is thrown away."""

from __future__ import annotations

import copy
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from entmtp.data.cache import silent
from entmtp.heads import DraftHeads
from entmtp.heads.on_native import draft_natively
from entmtp.heads.on_openvino import draft_on_openvino
from entmtp.target import TargetModel
from entmtp.target.runtimes import native
from entmtp.target.runtimes.block_cache import BlockCache
from entmtp.target.runtimes.blocks import BLOCK_SIZE
from entmtp.target.runtimes.compiled import CompiledTarget
from entmtp.target.runtimes.native import NativeTarget
from entmtp.target.runtimes.openvino import OpenVinoTarget
from fixtures import tiny


def formats_of(runtime: str) -> tuple[str, ...]:
    """The number formats that it has."""
    return native.FORMATS if runtime == "native" else ("float32", "bfloat16", "int8")


needs_openvino = pytest.mark.skipif(
    find_spec("openvino") is None, reason="openvino is not installed: pip install entmtp[openvino]"
)

needs_compiler = pytest.mark.skipif(
    shutil.which("g++") is None, reason="there is no g++ to compile with"
)
needs_native = pytest.mark.skipif(
    (reason := native.missing()) is not None, reason=f"no native runtime here: {reason}"
)
_MARKS = {
    "native": [needs_native],
    "openvino": [needs_openvino],
    "compiled": [needs_compiler, pytest.mark.slow],
}
RUNTIMES = tuple(pytest.param(name, marks=marks) for name, marks in _MARKS.items())
RUNTIMES_AND_FORMATS = tuple(
    pytest.param(name, number_format, marks=marks)
    for name, marks in _MARKS.items()
    for number_format in formats_of(name)
)


@contextmanager
def graphs_in(folder: Path) -> Iterator[None]:
    """Export to `folder` instead of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        for room in ("artefact", "packages", "choice"):
            patch.setattr(f"entmtp.target.runtimes.{room}.cache_dir", lambda: folder)
        yield


@lru_cache
def on_openvino(
    arch: str = "llama", number_format: str = "float32", *, vocab_size: int = 8, length: int = 256
) -> TargetModel:
    """The tiny model of `fixtures` on OpenVINO."""
    target = tiny(arch, vocab_size=vocab_size, max_length=length)
    with tempfile.TemporaryDirectory() as folder, graphs_in(Path(folder)):
        return OpenVinoTarget(target, number_format, silent)


def drafting_on_openvino(heads: DraftHeads, target: TargetModel) -> DraftHeads:
    """A copy of heads that computes where the target does."""
    fast = copy.deepcopy(heads)
    with tempfile.TemporaryDirectory() as folder, graphs_in(Path(folder)):
        draft_on_openvino(fast, target, silent)
    return fast


@lru_cache
def _packages() -> tempfile.TemporaryDirectory[str]:
    """Compiled layers of this session. They take seconds each, and serve any weights."""
    return tempfile.TemporaryDirectory(prefix="entmtp-packages-")


@lru_cache
def on_compiled(
    arch: str = "llama", number_format: str = "float32", *, vocab_size: int = 8
) -> TargetModel:
    """The tiny model of `fixtures` in compiled PyTorch, as long as any test wants it."""
    target = tiny(arch, vocab_size=vocab_size, max_length=1024)
    with graphs_in(Path(_packages().name)):
        return CompiledTarget(target, number_format, silent)


@lru_cache
def on_native(
    arch: str = "llama", number_format: str = "int8", *, vocab_size: int = 8, length: int = 256
) -> TargetModel:
    """The tiny model of `fixtures` on kernels of our own."""
    target = tiny(arch, vocab_size=vocab_size, max_length=length)
    return NativeTarget(target, number_format, silent)


def drafting_natively(heads: DraftHeads) -> DraftHeads:
    """A copy of heads that computes by native kernels."""
    fast = copy.deepcopy(heads)
    assert draft_natively(fast, silent)
    return fast


def on(
    runtime: str, arch: str = "llama", number_format: str = "float32", length: int = 256
) -> TargetModel:
    """The tiny model on a runtime by its name."""
    if runtime == "compiled":
        return on_compiled(arch, number_format)
    if runtime == "native":
        return on_native(arch, number_format, length=length)
    return on_openvino(arch, number_format, length=length)


def committed(cache: BlockCache) -> list[torch.Tensor]:
    """Keys of every layer, then values: all that is committed of the only sequence, `[N, n, D]`."""
    memory, length = cache.memory(), cache.length
    half, border = len(memory) // 2, length // BLOCK_SIZE * BLOCK_SIZE
    return [
        torch.cat([blocks[0].flatten(1, 2)[:, :border], tail[0][:, : length - border]], 1)
        for blocks, tail in zip(memory[:half], memory[half:], strict=True)
    ]
