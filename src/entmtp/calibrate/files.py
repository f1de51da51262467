"""Artefacts on disk: whole or not at all, with a schema version, and one line if not ours.

Knows: files. Does not know: what is in them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from entmtp.data.strict_json import parse_json
from entmtp.data.whole import whole
from entmtp.errors import ArtefactError

BROKEN = (OSError, ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError)
"""What reading a file that is not what it should be may raise."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write an artefact; the same content gives the same bytes."""
    text = json.dumps(dict(content), indent=1, allow_nan=False)
    with whole(path) as half:
        half.write_text(f"{text}\n", encoding="utf-8")


def read_json(path: Path, schema_version: int) -> dict[str, Any]:
    """What stands in an artefact of a version.

    Raises:
        ArtefactError: it cannot be read, is no JSON object, or of another version.
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        found = content["schema_version"]
    except BROKEN as error:
        raise broken(path, error) from error
    check_schema(path, found, schema_version)
    return dict(content)


def check_schema(path: Path, found: object, wanted: int) -> None:
    """Raises ArtefactError: the file is of another version."""
    if found != wanted:
        raise ArtefactError(
            f"{path} has schema version {found}, this program reads {wanted}; calibrate again"
        )


def broken(path: Path, error: Exception) -> ArtefactError:
    """The one line for a file that is not what it should be."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return ArtefactError(f"{path} is broken ({reason}); calibrate again")


@contextmanager
def tensors_written(path: Path) -> Iterator[None]:
    """Raises ArtefactError where safetensors cannot write, with the file that it was for."""
    try:
        yield
    except SafetensorError as error:
        raise ArtefactError(
            f"{path} cannot be written ({error}); check the rights and the space, and run again"
        ) from error


def finished(path: Path, make: Callable[[], Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The tensors of a file of finished work; where it is not there, they are made and written.

    Raises:
        ArtefactError: the file is broken, or cannot be written.
    """
    if not path.exists():
        tensors = {name: tensor.contiguous().cpu() for name, tensor in make().items()}
        with tensors_written(path), whole(path) as half:
            save_file(tensors, half)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtefactError(f"{path} is broken ({error}); delete it and run again") from error
