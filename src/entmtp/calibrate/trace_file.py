"""A rank trace on disk: one safetensors file, written whole, read strictly.

Knows: the format. Does not know: who measured, trees of a bank.

The tensors are the arrays of `RankTrace` by their names. The metadata has one entry, `trace`, a
JSON object: `schema_version`, `origin` (model, heads, number format, runtime, device), `answers`
(temperature, seed, tokens, prompts), `wide_tree` (paths) and `kinds`. One entry, because the order
of several is not said, and the same trace is to be the same bytes.

Dimension key: N starts of all rows · K draft heads · M nodes of the wide tree · R rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from entmtp.calibrate.done_work import ROUNDING
from entmtp.calibrate.files import BROKEN, broken, check_schema, tensors_written
from entmtp.calibrate.origin import Origin
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.data.strict_json import parse_json
from entmtp.data.whole import whole
from entmtp.errors import TreeError
from entmtp.trees import Tree

SCHEMA_VERSION = 1
_ENTRY = "trace"
_TYPES = {
    "ranks": np.int32,
    "log_probs": np.float32,
    "root_probability": np.float32,
    "root_entropy": np.float32,
    "row_starts": np.int64,
    "prompt_lengths": np.int64,
}


class StoredTrace(NamedTuple):
    """A trace and what it was made with."""

    trace: RankTrace
    origin: Origin
    answers: Mapping[str, Any]
    """`temperature`, `seed`, `max_tokens`, `prompts` (a hash), …"""


def write_trace(path: Path, stored: StoredTrace) -> None:
    """Write it, whole or not at all; the same trace gives the same bytes."""
    trace = stored.trace
    content = {
        "schema_version": SCHEMA_VERSION,
        "origin": stored.origin._asdict(),
        "answers": dict(stored.answers),
        "wide_tree": trace.wide_tree.paths[1:],
        "kinds": trace.kinds,
    }
    tensors = {
        name: np.ascontiguousarray(getattr(trace, name), dtype) for name, dtype in _TYPES.items()
    }
    with tensors_written(path), whole(path) as half:
        save_file(tensors, half, {_ENTRY: json.dumps(content)})


def read_trace(path: Path, wanted: Origin | None = None) -> StoredTrace:
    """Read a trace.

    Args:
        wanted: what is to be run; a trace of anything else is refused.

    Raises:
        ArtefactError: it is missing, broken, of another version, or was made with other weights,
            number format, runtime or device than wanted.
    """
    try:
        with safe_open(path, "np") as file:
            content = parse_json((file.metadata() or {})[_ENTRY])
            check_schema(path, content["schema_version"], SCHEMA_VERSION)
            arrays = {name: file.get_tensor(name) for name in _TYPES}
        trace = RankTrace(
            wide_tree=Tree.from_paths(content["wide_tree"]),
            kinds=tuple(map(str, content["kinds"])),
            **arrays,
        )
        _check(trace)
        stored = StoredTrace(trace, Origin(**content["origin"]), dict(content["answers"]))
    except (*BROKEN, SafetensorError, TreeError) as error:
        raise broken(path, error) from error
    if wanted is not None:
        stored.origin.demand(path, wanted)
    return stored


def _check(trace: RankTrace) -> None:
    """Raises ValueError: the arrays do not fit one another."""
    for name, dtype in _TYPES.items():
        if getattr(trace, name).dtype != dtype:
            raise ValueError(f"{name} is of {getattr(trace, name).dtype}, not {dtype.__name__}")
    (num_starts, num_heads), num_rows = trace.ranks.shape, trace.num_rows
    shapes = {
        "log_probs": (num_starts, trace.wide_tree.num_nodes),
        "root_probability": (num_starts,),
        "root_entropy": (num_starts,),
        "row_starts": (num_rows + 1,),
        "prompt_lengths": (num_rows,),
    }
    for name, shape in shapes.items():
        if getattr(trace, name).shape != shape:
            raise ValueError(f"{name} has shape {getattr(trace, name).shape}, not {shape}")
    bounds = trace.row_starts
    if bounds[0] != 0 or bounds[-1] != num_starts or (np.diff(bounds) <= 0).any():
        raise ValueError(f"row_starts do not divide {num_starts} starts")
    if trace.wide_tree.depth > num_heads or (trace.ranks < 0).any():
        raise ValueError("ranks are negative, or fewer than the tree is deep")
    # What is not a number compares false.
    for name, is_right in (
        ("ranks", trace.ranks <= MISS),
        ("log_probs", trace.log_probs <= ROUNDING),
        (
            "root_probability",
            (trace.root_probability >= 0) & (trace.root_probability <= 1 + ROUNDING),
        ),
        ("root_entropy", (trace.root_entropy >= -ROUNDING) & np.isfinite(trace.root_entropy)),
        ("prompt_lengths", trace.prompt_lengths >= 0),
    ):
        if not is_right.all():
            raise ValueError(f"{name} holds what is none")
