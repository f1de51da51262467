"""Attention kernels for few rows over much memory with a tree's mask, against each other."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from entmtp.target.attention import folded_attention
from entmtp.target.masks import additive, placed_mask
from entmtp.target.runtimes.tree_attention import ATTENTIONS
from entmtp.trees import full, tree_buffers
from gpu_sections.setup import Clock, Setup

_SHAPES = {"smollm2-135m": (9, 3, 64), "1b": (32, 8, 64), "7b": (32, 32, 128)}
"""Heads, key/value heads, head size"""


def measure(setup: Setup, seconds_left: float) -> dict[str, Any]:
    names = ATTENTIONS if setup.is_cuda else ("sdpa",)
    shapes = {"smollm2-135m": _SHAPES["smollm2-135m"]} if setup.quick else _SHAPES
    lengths = (60,) if setup.quick else (500, 2000, 8000)
    dtypes = (torch.bfloat16,) if setup.quick else (torch.bfloat16, torch.float16)
    rows = [
        _row(setup, names, shape, sizes, length, num_rows, dtype)
        for shape, sizes in shapes.items()
        for length in lengths
        for num_rows in (1, 16, 64)
        for dtype in dtypes
    ]
    return {"left_out": sorted(set(ATTENTIONS) - set(names)), "runs": rows}


def _row(
    setup: Setup,
    names: tuple[str, ...],
    shape: str,
    sizes: tuple[int, int, int],
    length: int,
    num_rows: int,
    dtype: torch.dtype,
) -> dict[str, Any]:
    """Time in microseconds of each kernel, and its distance from float32 (relative, Frobenius)."""
    num_heads, num_kv_heads, size = sizes
    used, device = -(-(length + num_rows) // 512) * 512, setup.device
    torch.manual_seed(0)
    new = {"dtype": dtype, "device": device}
    query = torch.randn(1, num_heads, num_rows, size, **new)
    key, value = (torch.randn(1, num_kv_heads, used, size, **new) for _ in range(2))
    buffers = tree_buffers((full(3, 3),), device, num_rows)
    among = buffers.mask[:, :num_rows, :num_rows]
    seen = placed_mask(torch.tensor([length], device=device), among, used)
    mask = additive(seen, dtype)
    exact, _ = folded_attention(
        torch.nn.Module(), query.float(), key.float(), value.float(), additive(seen, torch.float32)
    )
    found: dict[str, Any] = {}
    for name in names:
        function = _function(name)
        options = {"tree_ends": torch.tensor([length + num_rows], device=device)}
        given = options if name == "triton" else {}

        def call(
            function: Callable[..., Any] = function, given: dict[str, Any] = given
        ) -> torch.Tensor:
            return function(torch.nn.Module(), query, key, value, mask, **given)[0]

        off = (call().float() - exact).norm() / exact.norm()
        found[name] = {"microseconds": 1e6 * _time(call, setup), "distance": off.item()}
    dtype_name = str(dtype).removeprefix("torch.")
    return {
        "shape": shape,
        "context": length,
        "rows": num_rows,
        "dtype": dtype_name,
        "kernels": found,
    }


def _function(name: str) -> Callable[..., Any]:
    if name == "sdpa":
        return folded_attention
    if name == "flex":
        from entmtp.target.runtimes.flex_attention import flex_tree_attention

        return flex_tree_attention
    from entmtp.target.runtimes.triton_attention import triton_tree_attention

    return triton_tree_attention


def _time(call: Callable[[], torch.Tensor], setup: Setup) -> float:
    """Seconds of one call among many in a graph, so that launches do not count."""
    calls = 2 if setup.quick else 20
    if not setup.is_cuda:
        clock = Clock(setup.device)
        for _ in range(calls):
            call()
        return clock.lap() / calls
    for _ in range(2):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    clock, laps = Clock(setup.device), []
    for _ in range(7):
        graph.replay()
        laps.append(clock.lap() / calls)
    return median(laps)
