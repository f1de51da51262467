"""Weights on disk as names, shapes and tensors, whatever file they lie in.

Knows: safetensors files, pickles of tensors, shards with their index, and the `config.json` beside.
Does not know: what the names mean.

A pickle is read by torch's reader for tensors alone; whatever else it wants to run is refused.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from entmtp.data.strict_json import parse_json
from entmtp.errors import ArtefactError

SUFFIXES = (".safetensors", ".pt", ".bin", ".pth")
INDEX_SUFFIX = ".index.json"
_STEMS = ("medusa_lm_head", "hydra_lm_head", "model", "pytorch_model")
"""Names that other programs give such files, what is heads alone first."""

Reader = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Source:
    """Named tensors that are read when they are asked for."""

    where: Path
    """What the user named."""
    config: Mapping[str, Any]
    """The `config.json` beside the weights; empty where there is none."""
    shapes: Mapping[str, tuple[int, ...]]
    readers: Mapping[str, Reader] = field(repr=False)

    def tensor(self, name: str) -> torch.Tensor:
        return self.readers[name]()

    def renamed(self, names: Mapping[str, str]) -> Source:
        """The same tensors under other names: `names` maps those here to new ones; others go."""
        return replace(
            self,
            shapes={new: self.shapes[old] for old, new in names.items()},
            readers={new: self.readers[old] for old, new in names.items()},
        )

    def number(self, key: str) -> int | None:
        """A count that the configuration gives, if it does."""
        value = self.config.get(key)
        return value if type(value) is int and value >= 0 else None


def find_weights(place: Path) -> list[Path]:
    """The files that hold a place's tensors: a file itself, or what lies in a folder.

    Raises:
        ArtefactError: the folder has several files of unknown names.
    """
    if place.is_file():
        return [place] if place.name.endswith((*SUFFIXES, INDEX_SUFFIX)) else []
    for stem in _STEMS:
        for suffix in SUFFIXES:
            for name in (f"{stem}{suffix}", f"{stem}{suffix}{INDEX_SUFFIX}"):
                if (place / name).is_file():
                    return [place / name]
    files = sorted(file for file in place.glob("*") if file.name.endswith(SUFFIXES))
    if indexes := sorted(place.glob(f"*{INDEX_SUFFIX}")):
        files = indexes
    if len(files) > 1 and not _are_shards(files):
        raise ArtefactError(
            f"{place} has several weight files ({', '.join(file.name for file in files)}); pass the"
            " one that holds the heads"
        )
    return files


def open_source(place: Path) -> Source:
    """Names and shapes of all tensors at a place that `find_weights` knows.

    Raises:
        ArtefactError: a file is missing, broken, or holds more than tensors.
    """
    folder = place if place.is_dir() else place.parent
    files = find_weights(place)
    if not files:
        raise ArtefactError(f"{place} has no weights that can be read; expected {_expected()}")
    shapes: dict[str, tuple[int, ...]] = {}
    readers: dict[str, Reader] = {}
    for file, wanted in _parts(files):
        given = _open_file(file)
        if absent := sorted(set(wanted or ()) - given.keys()):
            raise ArtefactError(f"{file} lacks {absent[0]!r}, which the index promises there")
        for name in wanted or given:
            if name in shapes:
                raise ArtefactError(f"{file} has {name!r}, which another file has too")
            shapes[name], readers[name] = given[name]
    return Source(place, read_config(folder), shapes, readers)


def read_config(folder: Path) -> Mapping[str, Any]:
    """`config.json` of a folder, empty where it is missing.

    Raises:
        ArtefactError: it is no JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        return {}
    config = _read_json(path)
    if not isinstance(config, dict):
        raise ArtefactError(f"{path} holds a {type(config).__name__}, expected a JSON object")
    return config


def _expected() -> str:
    return f"a file ending in {', '.join(SUFFIXES)} or {INDEX_SUFFIX}, or a folder with one"


def _are_shards(files: list[Path]) -> bool:
    matches = [re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)", file.name) for file in files]
    kinds = {(m[1], m[3], m[4]) for m in matches if m}
    return None not in matches and len(kinds) == 1 and len(files) == int(next(iter(kinds))[1])


def _parts(files: list[Path]) -> Iterable[tuple[Path, list[str] | None]]:
    """Each file with the names wanted of it; None for all."""
    for file in files:
        if not file.name.endswith(INDEX_SUFFIX):
            yield file, None
            continue
        content = _read_json(file)
        places = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(places, dict) or not all(isinstance(v, str) for v in places.values()):
            raise ArtefactError(f"{file} has no weight_map of names to files; copy it again")
        for shard in sorted(set(places.values())):
            if Path(shard).name != shard or not (file.parent / shard).is_file():
                raise ArtefactError(f"{file} names the shard {shard!r}, which is not beside it")
            yield file.parent / shard, [name for name, of in places.items() if of == shard]


def _read_json(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"{path} is not readable JSON ({short(error)}); copy it again"
        ) from None


def _open_file(file: Path) -> dict[str, tuple[tuple[int, ...], Reader]]:
    if file.suffix == ".safetensors":
        return _open_safetensors(file)
    tensors = _load_pickle(file)
    return {name: (tuple(value.shape), partial(_same, value)) for name, value in tensors.items()}


def _same(value: torch.Tensor) -> torch.Tensor:
    return value


def _open_safetensors(file: Path) -> dict[str, tuple[tuple[int, ...], Reader]]:
    def read(name: str) -> torch.Tensor:
        with safe_open(file, framework="pt") as opened:
            tensor: torch.Tensor = opened.get_tensor(name)
        return tensor

    try:
        with safe_open(file, framework="pt") as opened:
            names = list(opened.keys())
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in names}
            twins = opened.metadata() or {}
    except (OSError, SafetensorError, ValueError) as error:
        raise ArtefactError(
            f"{file} is not a readable safetensors file ({short(error)}); copy it again"
        ) from None
    found = {name: (shapes[name], partial(read, name)) for name in names}
    # Of tensors that share memory, `save_model` stores one and says which others it stands for.
    shared = {name: found[kept] for name, kept in twins.items() if kept in found}
    return {**shared, **found}


def _load_pickle(file: Path) -> dict[str, torch.Tensor]:
    try:
        content = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    # The reader raises whatever the bytes lead it to, so nothing narrower will do.
    except Exception as error:
        wanted = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it wants to run {wanted[1]}" if wanted else short(error)
        raise ArtefactError(
            f"{file} is not a pickle of tensors ({reason}); nothing of it was run; get the heads as"
            " safetensors or copy them again"
        ) from None
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict):
        raise ArtefactError(f"{file} holds a {type(content).__name__}, expected tensors by name")
    for name, value in content.items():
        if not isinstance(name, str) or not _is_plain(value):
            raise ArtefactError(
                f"{file} holds {name!r}, a {type(value).__name__} that is no plain tensor;"
                " expected tensors by name"
            )
    return content


def _is_plain(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def short(error: BaseException) -> str:
    """An error's own words on one line, and not too many."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= 120 else f"{words[:117]}..."
