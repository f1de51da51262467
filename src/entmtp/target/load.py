"""From what a user calls a model to a `TargetModel` that passed its self-check.

Knows: the four spellings (embedded name, folder, GGUF file, hub id) and what is wrong with a path
that is none of them. Does not know: heads, apart from the look of their folders.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from pathlib import Path
from typing import Any

import torch

from entmtp.data.cache import Progress
from entmtp.errors import BadInput, ModelRefused
from entmtp.target.checkpoint import read_checkpoint, read_hub, read_tokenizer
from entmtp.target.embedded import EMBEDDED, fetch_embedded
from entmtp.target.gguf_file import check_num_layers, read_gguf
from entmtp.target.layout import takes_our_attention
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainTarget
from entmtp.target.runtimes import can_be_native, must_be_fast, on_runtime, parse_runtime
from entmtp.target.runtimes.native import NativeTarget
from entmtp.target.runtimes.native.remembered import Place, recall, remember
from entmtp.target.runtimes.one_thread import torch_on_one_thread
from entmtp.target.selfcheck import plain_check
from entmtp.target.selfcheck import self_check as run_self_check
from entmtp.target.unmodified import Unmodified

DTYPES = {
    "auto": torch.bfloat16,  # unless the runtime makes something better of it
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float16": torch.float16,
    "int8": torch.bfloat16,  # what is read; the runtime makes int8 of it
}
EXPECTED = (
    f"an embedded name ({', '.join(EMBEDDED)}), a checkpoint folder, a .gguf file or org/name"
)

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HEADS_FILES = ("heads.json", "heads.safetensors", "medusa_lm_head.*", "hydra_lm_head.*")
_WEIGHT_FILES = ("model*.safetensors", "pytorch_model*.bin")
_NUM_LAYERS_KEYS = {"num_hidden_layers", "num_layers", "n_layer", "n_layers"}
_log = logging.getLogger(__name__)


def load_target(
    spec: str,
    dtype: str = "auto",
    device: str = "cpu",
    *,
    self_check: bool = True,
    allow_plain: bool = False,
    progress: Progress = _log.info,
    runtime: str = "eager",
) -> TargetModel:
    """Load a target model, unmodified, and check that trees can be verified with it.

    An embedded name wins over a folder of the same name in the current folder (say `./name` for
    that one), and is fetched where the cache does not have it.

    Args:
        allow_plain: let a model in that cannot verify trees, for plain decoding only, if that
            passes a check; `tree_refusal` then says why.
        dtype: one of `DTYPES`; `auto` is int8 on a runtime that has it, else bfloat16.
        runtime: one of `RUNTIMES`; `auto` says what it picked to `progress`.

    Raises:
        BadInput: `spec`, `dtype`, `device` or `runtime` is wrong, or they do not go together.
        FetchError: an embedded model could not be fetched.
        ModelRefused: the checkpoint cannot be read, or fails the self-check.
    """
    torch_dtype, torch_device = parse_dtype(dtype), parse_device(device)
    parse_runtime(runtime, dtype, torch_device.type)
    check = _check_once if self_check else _trust
    folder = _local_folder(spec, progress)
    place = None
    if folder is not None and can_be_native(runtime, dtype, torch_device.type):
        place = Place.of(folder, torch_dtype)
    if place is not None and (known := _recalled(spec, place)) is not None:
        return on_runtime(TargetModel(known), runtime, dtype, check, progress)
    model, tokenizer = _read(spec, folder, torch_dtype)
    model = _to_device(model, torch_device)
    shipped_attention = model.config._attn_implementation
    try:
        made = on_runtime(_wrapped(model, tokenizer, spec), runtime, dtype, check, progress)
        if place is not None and self_check and isinstance(made, NativeTarget):
            remember(place, made)
        return made
    except ModelRefused as error:
        if not allow_plain:
            raise
        if must_be_fast(runtime, dtype):
            raise BadInput(
                f"only the eager runtime takes a model for plain decoding only ({error}); use"
                " --runtime eager, and another --dtype than int8"
            ) from error
        if runtime == "graphs":
            raise BadInput(
                f"the graphs runtime takes no model for plain decoding only ({error}); use"
                " --runtime eager"
            ) from error
        progress(f"plain decoding only: {error}")
        if takes_our_attention(model):
            model.set_attn_implementation(shipped_attention)
        plain = PlainTarget(model, tokenizer, spec, tree_refusal=str(error))
        plain_check(plain)
        return plain


def _wrapped(model: Any, tokenizer: Any, name: str) -> TargetModel:
    # A forward of one token is soon done, and threads would wait on a busy machine.
    with torch_on_one_thread():
        return TargetModel.from_transformers(model, tokenizer, name=name)


def _recalled(spec: str, place: Place) -> Unmodified | None:
    """What is known of a checkpoint that was on `native` before; the model itself is not read."""
    where = str(place.checkpoint)
    return recall(
        place,
        spec,
        lambda: read_tokenizer(where),
        lambda: _wrapped(*read_checkpoint(where, place.dtype), spec).unmodified,
    )


def _check_once(target: TargetModel) -> None:
    """The self-check, unless it was passed before and nothing can have changed since."""
    mark = target.check_mark
    if mark is None or not mark.exists():
        run_self_check(target)
        if mark is not None:
            mark.touch()


def _trust(_: TargetModel) -> None:
    """The self-check of a caller who wants none."""


def parse_dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise BadInput(f"unknown dtype {name!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[name]


def parse_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInput(f"unknown device {name!r}; expected cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise BadInput(f"device {name!r} is not supported; expected cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise BadInput(
            f"no device {name}: this torch sees {torch.cuda.device_count()} CUDA devices; use cpu"
        )
    return device


def _local_folder(spec: str, progress: Progress) -> Path | None:
    """The checkpoint folder that is meant; None where it is something else."""
    if spec in EMBEDDED:
        return fetch_embedded(EMBEDDED[spec], progress)
    path = Path(spec).expanduser()
    if not spec or not path.is_dir():
        return None
    _check_folder(path)
    return path


def _read(spec: str, folder: Path | None, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer (None where there is none)."""
    if folder is not None:
        return read_checkpoint(str(folder), dtype)
    path = Path(spec).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise BadInput(f"{spec} is a file, but no .gguf file; pass {EXPECTED}")
        return read_gguf(path, dtype)
    if _HUB_ID.fullmatch(spec) and path.suffix != ".gguf":
        return read_hub(spec, dtype)
    close = difflib.get_close_matches(spec, EMBEDDED, n=1)
    hint = f"did you mean {close[0]}?" if close else f"pass {EXPECTED}"
    raise BadInput(f"no model {spec!r}: no such file or folder; {hint}")


def _check_folder(folder: Path) -> None:
    """Say what a folder is when it is not a checkpoint of a whole model."""
    has_weights = _has_any(folder, _WEIGHT_FILES)
    # A whole model may have heads beside it or in its own files.
    if _is_heads(folder) or (not has_weights and _has_any(folder, _HEADS_FILES)):
        raise BadInput(f"{folder} holds draft heads, not a model; pass it as the heads")
    if (folder / "config.json").is_file():
        if not has_weights:
            raise BadInput(f"{folder} has no weights (model.safetensors or its shards)")
        for key in _NUM_LAYERS_KEYS & set(config := _read_config(folder)):
            check_num_layers(config[key], folder / "config.json")
        return
    if ggufs := sorted(folder.glob("*.gguf")):
        raise BadInput(f"{folder} holds GGUF files; pass the file itself, e.g. {ggufs[0]}")
    if (folder / "adapter_config.json").is_file():
        raise BadInput(f"{folder} holds a LoRA adapter; merge it into its base and pass that")
    raise BadInput(f"{folder} has no config.json; pass {EXPECTED}")


def _has_any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(next(folder.glob(pattern), None) is not None for pattern in patterns)


def _is_heads(folder: Path) -> bool:
    """Whether the configuration is one that only heads have, ours or that of other projects."""
    config = _read_config(folder)
    if config.get("model_type", "medusa") != "medusa":
        return False
    return bool({"medusa_num_heads", "hydra_num_heads", "num_heads", "entmtp"} & set(config))


def _read_config(folder: Path) -> dict[str, Any]:
    """What `config.json` says; nothing where it is missing or broken."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _to_device(model: Any, device: torch.device) -> Any:
    try:
        return model.to(device)
    except torch.OutOfMemoryError as error:
        raise BadInput(
            f"{device} has too little memory for this model; use a smaller dtype or another device"
        ) from error
