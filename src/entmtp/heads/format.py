"""Heads on disk: a folder with `heads.safetensors` and `heads.json`, or a published layout.

Knows: our own files, what makes them fit a target, and how to name what does not.
Does not know: the layouts of other projects (`published/`), training.

The JSON: `schema_version`, `config` (the fields of `HeadsConfig`), `base` (what
`fit.py` keeps of the target) and `provenance` (free). Written last and atomically, so that a
folder with a readable `heads.json` is complete.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from entmtp.data.cache import Progress
from entmtp.data.strict_json import parse_json
from entmtp.data.whole import whole
from entmtp.errors import ArtefactError, HeadsError
from entmtp.heads.base import DraftHeads, HeadsConfig, PrefixShape
from entmtp.heads.fit import check_base, check_size, check_tensors, describe_base
from entmtp.heads.on_native import draft_natively
from entmtp.heads.published import count_published, find_weights, read_published
from entmtp.heads.registry import build_heads
from entmtp.heads.speculators import FILE_NAME as SPECULATORS_NAME
from entmtp.heads.speculators import speculators_config
from entmtp.target.model import TargetModel
from entmtp.target.runtimes.one_thread import torch_on_one_thread

SCHEMA_VERSION = 1
WEIGHTS_NAME = "heads.safetensors"
CONFIG_NAME = "heads.json"
PACKAGED = Path(__file__).parent / "packaged"
_log = logging.getLogger(__name__)


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
        "base": describe_base(target),
        "provenance": dict(provenance),
    }
    with whole(folder / WEIGHTS_NAME) as half:
        save_file(tensors, half)
    _write_json(folder / SPECULATORS_NAME, speculators_config(heads.config, target))
    _write_json(folder / CONFIG_NAME, description)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    with whole(path) as half:
        half.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class HeadsDescription(NamedTuple):
    """What `heads.json` says."""

    config: HeadsConfig
    base: dict[str, Any]
    provenance: dict[str, Any]


def describe_heads(spec: str | Path) -> HeadsDescription:
    """What heads in our own format are, without their weights.

    Raises:
        HeadsError: there are none under that name, or they are in a published layout.
        ArtefactError: the description is broken.
    """
    folder = locate_heads(spec)
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise HeadsError(
            f"{folder} holds heads in a layout of another project, which says too little of them;"
            f" convert them first: entmtp convert heads {folder} OUT --to own"
        )
    description = _read_description(path)
    for name in ("config", "base", "provenance"):
        if not isinstance(description.get(name), dict):
            raise ArtefactError(
                f"{path} does not describe heads ({name} is {description.get(name)!r}, expected"
                " an object); train or copy them again"
            )
    config = _read_config(description["config"], path)
    return HeadsDescription(config, description["base"], description["provenance"])


def count_heads(spec: str | Path) -> int:
    """How many draft heads there are, without their weights.

    Raises:
        HeadsError, ArtefactError: as `load_heads`, as far as it can be told without a target.
    """
    place = locate_heads(spec)
    if (place / CONFIG_NAME).is_file():
        return describe_heads(place).config.num_draft_heads
    return count_published(place)


def load_heads(spec: str | Path, target: TargetModel, progress: Progress = _log.info) -> DraftHeads:
    """Heads from a folder or file, or packaged ones by name, bound to the target and in its dtype.

    They draft on the target's runtime.

    Raises:
        HeadsError: there are none under that name, or they do not fit the target.
        ArtefactError: the files are broken.
    """
    # Many small steps: on a busy machine PyTorch's threads would wait at each for one another.
    with torch_on_one_thread():
        heads = read_heads(spec, target)
        heads.to(device=target.device, dtype=target.dtype)
        heads.bind(target)
    heads.requires_grad_(False)
    heads.eval()
    if target.runtime == "openvino":
        # Imported here, because it costs seconds that no other runtime needs.
        from entmtp.heads.on_openvino import draft_on_openvino

        draft_on_openvino(heads, target, progress)
    elif target.runtime != "native" or not draft_natively(heads, progress):
        heads.pack()
    return heads


def read_heads(spec: str | Path, target: TargetModel) -> DraftHeads:
    """As `load_heads`, but in the numbers that are stored, and not bound."""
    place = locate_heads(spec)
    if not (place / CONFIG_NAME).is_file():
        return read_published(place, target)
    config, base, _ = describe_heads(place)
    check_size(place, "hidden size", config.hidden_size, target.hidden_size, target)
    check_size(place, "vocabulary", config.vocab_size, target.vocab_size, target)
    check_base(base, target, place)
    return _read_own(config, place / WEIGHTS_NAME)


def locate_heads(spec: str | Path) -> Path:
    """The folder or file that a name or a path means.

    Raises:
        HeadsError: nothing there looks like heads.
    """
    packaged = PACKAGED / str(spec)
    if (packaged / CONFIG_NAME).is_file():
        return packaged
    place = Path(spec).expanduser()
    if place.is_file() and place.name in (WEIGHTS_NAME, CONFIG_NAME):
        place = place.parent
    if spec == "":  # to `Path` the current folder
        raise HeadsError("the name of the draft heads is empty; give one, or leave it out")
    if (place / CONFIG_NAME).is_file():
        return place
    reason = "no such file or folder"
    if (place / WEIGHTS_NAME).is_file():
        reason = f"{CONFIG_NAME} is missing there"
    elif place.exists():
        if find_weights(place):
            return place
        reason = "there are neither heads nor weights"
    names = ", ".join(sorted(p.name for p in PACKAGED.glob("*") if p.is_dir())) or "none"
    raise HeadsError(
        f"no draft heads at {spec}: {reason}; pass a folder written by train-heads, published"
        f" Medusa or Hydra heads, or a packaged name ({names})"
    )


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = parse_json(path.read_text(encoding="utf-8"))
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
            _check_prefix(prefix)
        _check_types(HeadsConfig, values)
        config = HeadsConfig(**values, prefix=prefix)
        _check_counts(config)
        return config
    except (TypeError, ValueError) as error:
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


def _check_counts(config: HeadsConfig) -> None:
    """Raises ValueError: no heads have such sizes."""
    for name in ("hidden_size", "vocab_size", "num_draft_heads", "draft_vocab_size"):
        if (value := getattr(config, name)) < 1:
            raise ValueError(f"{name} is {value}, expected 1 or more")
    if config.num_layers < 0:
        raise ValueError(f"num_layers is {config.num_layers}, expected 0 or more")


def _check_prefix(shape: PrefixShape) -> None:
    """Raises ValueError: no decoder layer has such a shape."""
    for entry in fields(shape):
        value = getattr(shape, entry.name)
        if not 0 < value < float("inf"):
            raise ValueError(f"{entry.name} of the prefix is {value}, expected more than 0")
    if shape.head_dim % 2 or shape.num_attention_heads % shape.num_kv_heads:
        raise ValueError(
            f"the prefix has {shape.num_attention_heads} attention heads over {shape.num_kv_heads}"
            f" of keys, each {shape.head_dim} wide; expected a multiple, and an even width"
        )


def _read_own(config: HeadsConfig, path: Path) -> DraftHeads:
    # Sizes are checked before anything of these sizes is made, and starting weights never are.
    with torch.device("meta"):
        heads = build_heads(config)
    expected = {name: tuple(value.shape) for name, value in heads.state_dict().items()}
    tensors = _read_tensors(path, expected)
    for name, value in tensors.items():
        if name == "draft_ids":
            _check_draft_ids(value, config.vocab_size, path)
        elif not _is_finite(value):
            warnings.warn(
                f"{path}: {name} holds NaN or infinite values; hardly any draft will be accepted",
                stacklevel=5,
            )
    dtype = next(value.dtype for value in tensors.values() if value.is_floating_point())
    # Copies: the file may be written anew while the heads are in use.
    held = {
        name: value.to(dtype if value.is_floating_point() else torch.long, copy=True)
        for name, value in tensors.items()
    }
    heads.load_state_dict(held, strict=True, assign=True)
    return heads


def _is_finite(value: torch.Tensor) -> bool:
    """In one reading: the smallest and the largest number are what is not finite, if any is."""
    numbers = value if value.element_size() > 1 else value.float()  # torch orders no float8
    return value.numel() == 0 or all(bool(each.isfinite()) for each in numbers.aminmax())


def _read_tensors(path: Path, expected: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    try:
        with safe_open(path, framework="pt") as opened:
            shapes = {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118
            check_tensors(path, shapes, expected, f"that its {CONFIG_NAME} promises")
            return {name: opened.get_tensor(name) for name in shapes}
    except (OSError, SafetensorError) as error:
        raise ArtefactError(f"{path} is not a readable safetensors file ({error})") from error


def _check_draft_ids(ids: torch.Tensor, vocab_size: int, path: Path) -> None:
    if ids.is_floating_point():
        raise ArtefactError(f"{path}: draft_ids holds {ids.dtype}, expected whole numbers")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
        raise ArtefactError(
            f"{path}: draft_ids reaches from {int(ids.min())} to {int(ids.max())}, the vocabulary"
            f" has {vocab_size} tokens"
        )
