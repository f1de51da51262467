"""Tensors into files, as other programs lay them down: pickles, safetensors, shards, a config."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

Tensors = dict[str, torch.Tensor]


def write_pickle(folder: Path, tensors: Tensors, name: str = "medusa_lm_head.pt") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(tensors, folder / name)
    return folder


def write_safetensors(
    folder: Path, tensors: Tensors, name: str = "medusa_lm_head.safetensors"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({n: value.clone() for n, value in tensors.items()}, folder / name)
    return folder


def write_shards(folder: Path, tensors: Tensors, stem: str = "model") -> Path:
    """Two files and their index."""
    names = sorted(tensors)
    places = {name: f"{stem}-{1 + i % 2:05d}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in sorted(set(places.values())):
        part = {name: tensors[name] for name, of in places.items() if of == file}
        write_safetensors(folder, part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))
    return folder


def with_config(folder: Path, config: Mapping[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder
