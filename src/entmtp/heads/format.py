"""Heads on disk: a folder with `heads.safetensors` and `heads.json`.

Knows: the two files, what makes them fit a target, and how to name what does not.
Does not know: the published layouts of other projects, training.

The JSON: `schema_version`, `config` (the fields of `HeadsConfig`), `base` (`name`, `fingerprint`
of the target) and `provenance` (free). Written last and atomically, so that a folder with a
readable `heads.json` is complete.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from entmtp.errors import ArtefactError, HeadsError
from entmtp.heads.base import DraftHeads, HeadsConfig, PrefixShape
from entmtp.heads.registry import build_heads
from entmtp.target.model import TargetModel

SCHEMA_VERSION = 1
WEIGHTS_NAME = "heads.safetensors"
CONFIG_NAME = "heads.json"
PACKAGED = Path(__file__).parent / "packaged"


def save_heads(
    heads: DraftHeads,
    path: str | Path,
    target: TargetModel,
    provenance: Mapping[str, Any],
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write heads into a folder, each file whole or not at all."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (value.to(dtype) if value.is_floating_point() else value.to(torch.int32))
        .contiguous()
        .cpu()
        for name, value in heads.state_dict().items()
    }
    description = {
        "schema_version": SCHEMA_VERSION,
        "config": asdict(heads.config),
        "base": {"name": target.name, "fingerprint": target.fingerprint},
        "provenance": dict(provenance),
    }
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    half = folder / f".{WEIGHTS_NAME}"
    save_file(tensors, half)
    half.replace(folder / WEIGHTS_NAME)
    half = folder / f".{CONFIG_NAME}"
    half.write_text(text, encoding="utf-8")
    half.replace(folder / CONFIG_NAME)


class HeadsDescription(NamedTuple):
    """What `heads.json` says."""

    config: HeadsConfig
    base: dict[str, Any]
    provenance: dict[str, Any]


def describe_heads(spec: str | Path) -> HeadsDescription:
    """What heads are, without their weights.

    Raises:
        HeadsError: there are none under that name.
        ArtefactError: the description is broken.
    """
    folder = locate_heads(spec)
    path = folder / CONFIG_NAME
    description = _read_description(path)
    for name in ("config", "base", "provenance"):
        if not isinstance(description.get(name), dict):
            raise ArtefactError(
                f"{path} does not describe heads ({name} is {description.get(name)!r}, expected"
                " an object); train or copy them again"
            )
    config = _read_config(description["config"], path)
    return HeadsDescription(config, description["base"], description["provenance"])


def load_heads(spec: str | Path, target: TargetModel) -> DraftHeads:
    """Heads from a folder, or packaged ones by name, bound to the target and in its dtype.

    Raises:
        HeadsError: there are none under that name, or they do not fit the target.
        ArtefactError: the files are broken.
    """
    folder = locate_heads(spec)
    config, base, _ = describe_heads(spec)
    _check_fit(config, base, target, folder)
    heads = build_heads(config)
    _load_weights(heads, folder / WEIGHTS_NAME)
    heads.to(device=target.device, dtype=target.dtype)
    heads.bind(target)
    heads.requires_grad_(False)
    return heads.eval()


def locate_heads(spec: str | Path) -> Path:
    """The folder that a name or a path means."""
    packaged = PACKAGED / str(spec)
    folder = packaged if (packaged / CONFIG_NAME).is_file() else Path(spec)
    if not (folder / CONFIG_NAME).is_file():
        names = ", ".join(sorted(p.name for p in PACKAGED.glob("*") if p.is_dir())) or "none"
        raise HeadsError(
            f"no draft heads at {spec}: {CONFIG_NAME} is missing there; pass a folder written by"
            f" train-heads or a packaged name ({names})"
        )
    return folder


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtefactError(
            f"{path} is not readable JSON ({error}); train or copy it again"
        ) from error
    if not isinstance(description, dict) or description.get("schema_version") != SCHEMA_VERSION:
        found = description.get("schema_version") if isinstance(description, dict) else None
        raise ArtefactError(
            f"{path} has schema version {found}, this program reads {SCHEMA_VERSION}; train the"
            " heads again or use a matching release"
        )
    return description


def _read_config(fields: dict[str, Any], path: Path) -> HeadsConfig:
    values = dict(fields)
    prefix = values.pop("prefix", None)
    try:
        if prefix is not None:
            _check_types(PrefixShape, prefix)
            prefix = PrefixShape(**prefix)
        _check_types(HeadsConfig, values)
        return HeadsConfig(**values, prefix=prefix)
    except TypeError as error:
        raise ArtefactError(
            f"{path} does not describe heads ({error}); train or copy them again"
        ) from error


def _check_types(shape: type[HeadsConfig | PrefixShape], values: Any) -> None:
    """Raises TypeError: a value is not of its field's type; what is missing is not looked at."""
    if not isinstance(values, dict):
        raise TypeError(f"prefix is {values!r}, expected an object or null")
    for name, expected in get_type_hints(shape).items():
        value = values.get(name)
        is_right = type(value) is expected or (expected is float and type(value) is int)
        if name in values and not is_right:
            raise TypeError(f"{name} is {value!r}, expected {expected.__name__}")


def _check_fit(
    config: HeadsConfig, base: dict[str, Any], target: TargetModel, folder: Path
) -> None:
    for word, ours, theirs in (
        ("hidden size", config.hidden_size, target.hidden_size),
        ("vocabulary", config.vocab_size, target.vocab_size),
    ):
        if ours != theirs:
            raise HeadsError(
                f"heads in {folder} are for {word} {ours}, the model {target.name} has {theirs};"
                f" use heads trained for this model (these: {base.get('name', 'unknown')})"
            )
    if base.get("fingerprint") != target.fingerprint:
        warnings.warn(
            f"heads in {folder} were trained for {base.get('name')}"
            f" ({base.get('fingerprint')}), the model is {target.name} ({target.fingerprint});"
            " the output stays exact, but few drafts may be accepted",
            stacklevel=3,
        )


def _load_weights(heads: DraftHeads, path: Path) -> None:
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtefactError(f"{path} is not a readable safetensors file ({error})") from error
    expected = heads.state_dict()
    missing = sorted(expected.keys() - tensors.keys())
    surplus = sorted(tensors.keys() - expected.keys())
    if missing or surplus:
        raise ArtefactError(
            f"{path} does not hold the tensors that its {CONFIG_NAME} promises; missing:"
            f" {', '.join(missing) or 'none'}; unexpected: {', '.join(surplus) or 'none'}"
        )
    for name, value in tensors.items():
        if value.shape != expected[name].shape:
            raise ArtefactError(
                f"{path}: {name} has shape {list(value.shape)}, expected"
                f" {list(expected[name].shape)}"
            )
        if not bool(torch.isfinite(value).all()):
            warnings.warn(
                f"{path}: {name} holds NaN or infinite values; no draft will be accepted",
                stacklevel=4,
            )
    ids = tensors.get("draft_ids")
    if ids is not None and (int(ids.min()) < 0 or int(ids.max()) >= heads.vocab_size):
        raise ArtefactError(
            f"{path}: draft_ids reaches from {int(ids.min())} to {int(ids.max())}, the vocabulary"
            f" has {heads.vocab_size} tokens"
        )
    heads.load_state_dict(tensors, strict=True)
