"""Tensors of a checkpoint's safetensors files, by their names.

Knows: which file holds which. Does not know: models.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open


def files_of_tensors(folder: Path) -> dict[str, str]:
    """The name of the file that holds each tensor; a tensor that two files hold is left out.

    Raises:
        OSError, SafetensorError: a file cannot be read.
    """
    files: dict[str, str] = {}
    twice: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as opened:
            names = set(opened.keys())
        twice |= names & files.keys()
        files |= dict.fromkeys(names, path.name)
    return {name: file for name, file in files.items() if name not in twice}


def read_tensors(folder: Path, files: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """The tensors that `files` names, of these files.

    They lie in the files' own pages, which are read when they are looked at: copy what is to
    outlive a change of the checkpoint.

    Raises:
        OSError, SafetensorError: a file cannot be read, or lacks a tensor.
    """
    tensors = {}
    for file in sorted(set(files.values())):
        with safe_open(folder / file, framework="pt") as opened:
            for name in (name for name, its in files.items() if its == file):
                tensors[name] = opened.get_tensor(name)
    return tensors
