"""A checkpoint, in a folder or on the hub, to a `transformers` model and its tokenizer.

Knows: `transformers`' Auto classes, what they raise, and what tells one folder of files from
another. Does not know: the spellings of a model, runtimes.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
from pathlib import Path
from typing import Any

import torch

from entmtp.errors import ModelRefused
from entmtp.target.architecture import rope_parameters, rope_type, unknown_rope
from entmtp.target.gguf_file import LOAD_ERRORS, first_line, quiet

_TOKENIZER_FILES = ("tokenizer*", "vocab.*", "*.tiktoken", "spiece.model")
_READ_WHOLE = 16 << 20
"""Files up to so many bytes are told apart by all that is in them, larger ones by samples."""
_NUM_SAMPLES, _SAMPLE = 64, 4096
"""Of a large file: how many, and bytes of each."""


def read_hub(spec: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """As `read_checkpoint`, from the Hugging Face hub."""
    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    # It would print a line for each of its retries, before our one.
    hub_log.setLevel(logging.ERROR)
    try:
        return read_checkpoint(spec, dtype)
    except ModelRefused as error:
        raise ModelRefused(
            f"{error} (no local folder of that name, so it was looked up on the Hugging Face hub;"
            " check the name and the network, or pass a local folder)"
        ) from error
    finally:
        hub_log.setLevel(level)


def read_checkpoint(where: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer (None where there is none) of a folder or hub id.

    Raises:
        ModelRefused: it cannot be read, or lacks a weight.
    """
    # Imported here, because it costs seconds that a model which is known need not take.
    from transformers import AutoModelForCausalLM

    try:
        with quiet():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                where,
                dtype=dtype,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
                trust_remote_code=False,
            )
    except LOAD_ERRORS as error:
        raise ModelRefused(f"cannot load {where}: {_reason(error, where)}") from error
    model, info = loaded
    # `transformers` would fill these with random numbers and go on.
    if absent := sorted(
        {
            *info["missing_keys"],
            *(k if isinstance(k, str) else k[0] for k in info["mismatched_keys"]),
        }
    ):
        more = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        raise ModelRefused(f"{where} lacks the weight {absent[0]}{more}, or has it in another size")
    return model, read_tokenizer(where)


def read_tokenizer(where: str) -> Any:
    """The tokenizer of a folder or hub id; None where a folder has none.

    Raises:
        ModelRefused: it cannot be read.
    """
    folder = Path(where)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES):
        return None
    from transformers import AutoTokenizer

    try:
        with quiet():
            tokenizer: Any = AutoTokenizer.from_pretrained(where, trust_remote_code=False)
            # Some wrong values are only met in use.
            tokenizer.decode(tokenizer("a")["input_ids"])
            return tokenizer
    except LOAD_ERRORS as error:
        raise ModelRefused(f"cannot load the tokenizer of {where}: {first_line(error)}") from error


def _reason(error: BaseException, where: str) -> str:
    """What was wrong, where `transformers` itself only names a module or a key."""
    from transformers import AutoConfig

    if isinstance(error, ModuleNotFoundError) and error.name:
        package = error.name.partition(".")[0]
        return f"it needs the package {package}, which is not installed (pip install {package})"
    if isinstance(error, pickle.UnpicklingError):  # torch's words advise to run it all the same
        return (
            "its weights are a pickle of more than tensors, or a broken one; nothing of it was run;"
            " get the model as safetensors"
        )
    if not isinstance(error, KeyError):
        return first_line(error)
    try:
        with quiet():
            config: Any = AutoConfig.from_pretrained(where, trust_remote_code=False)
    except LOAD_ERRORS:
        return f"its config.json is not complete: {error.args[0]}"
    kind = str(error.args[0])
    if kind in {rope_type(rope) for rope in rope_parameters(config.get_text_config())}:
        return unknown_rope(config, kind)
    return f"its config.json asks for {kind!r}, which transformers does not know"


def digest_of_folder(folder: Path) -> str:
    """SHA-256 over names, sizes, times and contents of the files in a folder, in milliseconds.

    Of a large file's content only samples are looked at; its time tells of a change elsewhere.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file():
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}\n".encode())
            for sample in _samples(path, state.st_size):
                digest.update(sample)
    return digest.hexdigest()


def _samples(path: Path, size: int) -> list[bytes]:
    if size <= _READ_WHOLE:
        return [path.read_bytes()]
    samples = []
    with path.open("rb") as file:
        for index in range(_NUM_SAMPLES):
            file.seek((size - _SAMPLE) * index // (_NUM_SAMPLES - 1))
            samples.append(file.read(_SAMPLE))
    return samples
