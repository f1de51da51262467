"""Heads in the layouts of other projects: found out by their names, read, and written.

Knows: which layouts there are. Does not know: our own format. A new layout is one file and one line
in `LAYOUTS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file

from entmtp.data.whole import whole
from entmtp.errors import HeadsError
from entmtp.heads.base import DraftHeads
from entmtp.heads.fit import check_base, describe_base, listed
from entmtp.heads.published import hydra, medusa_v1, medusa_v2, vllm_medusa
from entmtp.heads.published.layout import Layout, is_whole_model
from entmtp.heads.published.source import Source, find_weights, open_source
from entmtp.heads.registry import build_heads
from entmtp.target.model import TargetModel

__all__ = ["LAYOUTS", "count_published", "find_weights", "read_published", "write_published"]

LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.name: layout
        # The first that knows the names counts: medusa-v2 has some of those of medusa-v1.
        for layout in (medusa_v1.LAYOUT, medusa_v2.LAYOUT, vllm_medusa.LAYOUT, hydra.LAYOUT)
    }
)


def count_published(place: Path) -> int:
    """How many draft heads a file or folder holds.

    Raises:
        HeadsError: it holds none in a known layout.
        ArtefactError: it cannot be read.
    """
    source = open_source(place)
    return _layout_of(source).num_draft_heads(source)


def read_published(place: Path, target: TargetModel) -> DraftHeads:
    """Heads from a file or folder in any known layout, in the numbers that it holds, not bound.

    Raises:
        HeadsError: there are none in a known layout, or they do not fit the target.
        ArtefactError: the files are broken.
    """
    source = open_source(place)
    reading = _layout_of(source).read(source, target)
    check_base(_base_of(source), target, place)
    heads = build_heads(reading.config)
    floats = {value.dtype for value in reading.tensors.values() if value.is_floating_point()}
    heads.to(floats.pop() if len(floats) == 1 else torch.float32)
    heads.load_state_dict(reading.tensors, strict=True)
    return heads


def write_published(heads: DraftHeads, target: TargetModel, layout: str, folder: Path) -> None:
    """Write heads into a new folder.

    Raises:
        HeadsError: the layout cannot hold them; the message says why.
    """
    files = LAYOUTS[layout].write(heads, target)
    folder.mkdir(parents=True, exist_ok=True)
    # Copies: torch would write the whole storage behind each view.
    tensors = {name: value.detach().cpu().clone() for name, value in files.tensors.items()}
    if files.weights_name.endswith(".safetensors"):
        with whole(folder / files.weights_name) as half:
            save_file(tensors, half, metadata={"format": "pt"})
    else:
        torch.save(tensors, folder / files.weights_name)
    config = {**files.config, "entmtp": {"base": describe_base(target)}}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")


def _layout_of(source: Source) -> Layout:
    for layout in LAYOUTS.values():
        if layout.num_draft_heads(source):
            return layout
    if is_whole_model(source.shapes):
        raise HeadsError(
            f"{source.where} holds a model, not draft heads; pass it as --model, and its heads as"
            " --heads"
        )
    missing = ", ".join(f"{layout.example} ({name})" for name, layout in LAYOUTS.items())
    raise HeadsError(
        f"{source.where} is in no layout of draft heads that can be read; missing: {missing};"
        f" unexpected: {listed(sorted(source.shapes))}; convert it to one of these"
    )


def _base_of(source: Source) -> Mapping[str, Any]:
    """What the configuration says of the heads' target; only heads written here say much."""
    ours = source.config.get("entmtp")
    base = ours.get("base") if isinstance(ours, dict) else None
    if isinstance(base, dict):
        return base
    return {"name": source.config.get("base_model_name_or_path")}
