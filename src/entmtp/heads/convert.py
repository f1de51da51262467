"""Heads from any layout that is read to any that is written.

Knows: which layouts hold which heads. Does not know: models beyond what a target says of itself.

Numbers stay as they are stored. Where a layout wants output rows that the heads share with their
model, the model's are written out; a projection is multiplied into them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from entmtp.errors import BadInput
from entmtp.heads.base import DraftHeads
from entmtp.heads.format import CONFIG_NAME, describe_heads, locate_heads, read_heads, save_heads
from entmtp.heads.published import LAYOUTS, write_published
from entmtp.heads.static_trees import read_static_trees, write_static_trees
from entmtp.target.model import TargetModel

OWN = "own"
LAYOUT_NAMES = (OWN, *LAYOUTS)


def check_conversion(out: str | Path, layout: str) -> None:
    """Say what is wrong before a model is loaded.

    Raises:
        BadInput: there is no such layout, or something stands in the output's place.
    """
    if layout not in LAYOUT_NAMES:
        raise BadInput(f"unknown layout {layout!r}; expected one of {', '.join(LAYOUT_NAMES)}")
    place = Path(out)
    if place.is_file() or (place.is_dir() and any(place.iterdir())):
        raise BadInput(f"{place} is there already; give a new or empty folder")


def convert_heads(
    spec: str | Path, out: str | Path, layout: str, target: TargetModel
) -> DraftHeads:
    """Write heads into the folder `out`, whole or not at all; returns them, not bound.

    Static trees beside the heads come along.

    Raises:
        BadInput: there is no such layout, or `out` cannot be written.
        HeadsError: the heads do not fit the target, or the layout cannot hold them.
        ArtefactError: their files are broken.
    """
    check_conversion(out, layout)
    place = locate_heads(spec)
    heads = read_heads(place, target)
    trees = read_static_trees(place)
    with _new_folder(Path(out)) as folder:
        if layout == OWN:
            dtype = next(heads.parameters()).dtype
            save_heads(heads, folder, target, _provenance(place), dtype)
        else:
            write_published(heads, target, layout, folder)
        if trees:
            write_static_trees(folder, trees)
    return heads


def _provenance(place: Path) -> dict[str, Any]:
    if (place / CONFIG_NAME).is_file():
        return describe_heads(place).provenance
    return {"converted_from": place.name}


@contextmanager
def _new_folder(final: Path) -> Iterator[Path]:
    """A folder that becomes `final` when the block ends well, and else disappears."""
    part = final.with_name(f".{final.name}.{os.getpid()}")
    try:
        part.mkdir(parents=True)
        yield part
        part.rename(final)
    except OSError as error:
        raise BadInput(f"cannot write {final}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
