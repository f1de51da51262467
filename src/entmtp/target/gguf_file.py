"""A GGUF file to an ordinary `transformers` model and tokenizer.

Knows: what `transformers` loses on the way from a GGUF tokenizer. Does not know: caches, engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers

from entmtp.errors import ModelRefused

LOAD_ERRORS = (Exception,)
"""What `transformers` and its readers raise for what they cannot read: anything. A value
of another type may surface as any error, and `tokenizers` raises `Exception` itself."""

_MOST_LAYERS = 10_000

_SPLITS_DIGITS = frozenset({"smollm"})
"""Values of `tokenizer.ggml.pre` whose text is cut at every digit before byte-level splitting."""


def read_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file, dequantised to `dtype`.

    Raises:
        ModelRefused: the file is broken, or of an architecture that `transformers` does not know.
    """
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        reader = GGUFReader(path)
        for name, field in reader.fields.items():
            if name.endswith(".block_count"):
                check_num_layers(field.contents(), path)
        with quiet():
            tokenizer: Any = AutoTokenizer.from_pretrained(**where)
            model: Any = AutoModelForCausalLM.from_pretrained(
                **where, dtype=dtype, quantization_config=GgufConfig(dequantize=True)
            )
    except ModelRefused:
        raise
    except LOAD_ERRORS as error:
        raise ModelRefused(f"cannot read {path} as a GGUF model: {first_line(error)}") from error
    if _pre_tokenizer_name(reader) in _SPLITS_DIGITS:
        split_digits(tokenizer)
    return model, tokenizer


def check_num_layers(given: Any, path: Path) -> None:
    """A model of more layers than any has would be built until the memory is full; none is none.

    Raises:
        ModelRefused: that is what the file asks for.
    """
    if isinstance(given, (int, float)) and not 1 <= given <= _MOST_LAYERS:
        raise ModelRefused(f"{path} asks for {given} layers; the file seems broken: get it anew")


def split_digits(tokenizer: Any) -> None:
    """Put `Digits(individual_digits=True)` in front of the steps that cut text into words.

    Without it 56 of 4,340 texts get other ids than llama.cpp gives them, with it none.
    """
    backend = tokenizer.backend_tokenizer
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars and no warnings of `transformers` inside the block."""
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    had_bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if had_bars:
            transformers_logging.enable_progress_bar()


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where it has none.

    With the next one, where the first ends in a colon and says nothing yet.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    num_lines = 2 if lines and lines[0].endswith(":") else 1
    return " ".join(lines[:num_lines]) or type(error).__name__


def _pre_tokenizer_name(reader: Any) -> str | None:
    field = reader.get_field("tokenizer.ggml.pre")
    return None if field is None else str(field.contents())
