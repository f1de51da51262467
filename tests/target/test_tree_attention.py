"""The attention kernels for a GPU, as far as a CPU can try them.

FlexAttention runs uncompiled. The Triton kernel runs in Triton's interpreter, and is compiled to
machine code for GPUs that are not there; both where `triton` is installed, as it is with every
CUDA build of PyTorch. The interpreter is chosen when a process starts, so each has its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from importlib.util import find_spec

import pytest
import torch

from entmtp.errors import ModelRefused
from entmtp.target.attention import folded_attention
from entmtp.target.runtimes.flex_attention import flex_tree_attention

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
MODULE = torch.nn.Module()

INTERPRETED = """
import torch
from entmtp.target.attention import folded_attention
from entmtp.target.runtimes.triton_attention import triton_tree_attention

torch.manual_seed(0)
for batch, heads, kv_heads, rows, used, size in [
    (2, 4, 2, 5, 300, 16), (1, 9, 3, 1, 513, 64), (1, 4, 1, 24, 70, 40)
]:
    query = torch.randn(batch, heads, rows, size)
    memory = torch.randn(2, batch, kv_heads, used + 20, size)[:, :, :, :used]
    ends = torch.randint(rows, used + 1, (batch,))
    seen = torch.rand(batch, 1, rows, used) < 0.7
    seen &= torch.arange(used) < ends[:, None, None, None]
    seen[..., 0] = True
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    expected, _ = folded_attention(torch.nn.Module(), query, *memory, mask)
    # What lies behind the end is not even looked at.
    for row, end in enumerate(ends.tolist()):
        memory[:, row, :, end:] = torch.nan
    got, _ = triton_tree_attention(torch.nn.Module(), query, *memory, mask, tree_ends=ends)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)

# By way of a model, which hands on where memory ends.
from entmtp.target.runtimes.capture import DirectRecorder
from entmtp.target.runtimes.graphs import GraphsTarget
from entmtp.target.selfcheck import self_check
from fixtures import tiny

self_check(GraphsTarget(tiny(), "triton", recorder=DirectRecorder()))
"""

COMPILED = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from entmtp.target.runtimes import triton_attention as kernels

FLOATS = {"sums", "tops", "weights"}
for number, block in (("bf16", 64), ("fp32", 32)):
    numbers = {"query", "key", "value", "mask", "output"}
    for kernel, sizes in (
        (kernels._sum_part, dict(SIZE=128, TILE=128, ROWS=64, PART=256, BLOCK=block)),
        (kernels._join_parts, dict(SIZE=128, TILE=128)),
    ):
        signature = {
            name: f"*{number}" if name in numbers else "*fp32" if name in FLOATS
            else "*i64" if name == "ends" else "constexpr" if name in sizes
            else "fp32" if name == "scale" else "i32"
            for name in kernel.arg_names
        }
        source = ASTSource(kernel, signature=signature, constexprs=sizes)
        for capability in (80, 90):
            made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
            assert made.metadata.shared <= 160 * 1024, made.metadata.shared
"""


def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    seen = torch.rand(2, 1, 5, 40) < 0.7
    seen[..., 0] = True
    mask = torch.zeros(seen.shape).masked_fill(~seen, -torch.inf)
    return torch.randn(2, 4, 5, 16), torch.randn(2, 2, 40, 16), torch.randn(2, 2, 40, 16), mask


def test_flex_attention_takes_any_mask() -> None:
    expected, _ = folded_attention(MODULE, *inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is slow uncompiled
        got, _ = flex_tree_attention(MODULE, *inputs())
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_options_that_would_be_dropped_are_refused() -> None:
    with pytest.raises(ModelRefused, match=r"softcap.*use attention sdpa"):
        flex_tree_attention(MODULE, *inputs(), softcap=30.0)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize(("program", "interpret"), [(INTERPRETED, "1"), (COMPILED, "0")])
def test_the_triton_kernel(program: str, interpret: str) -> None:
    paths = os.pathsep.join(sys.path)
    environment = {**os.environ, "TRITON_INTERPRET": interpret, "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
