"""Facts about a model with which it runs on `native` without `transformers`, read off the model.

Knows: a loaded model and the files it came from: which tensors there are which weights, to the bit.
Does not know: where facts are kept, and for how long they are good.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from entmtp.target.runtimes.native.stored_body import numbers_of
from entmtp.target.tensor_files import files_of_tensors, read_tensors
from entmtp.target.unmodified import Unmodified

_BODY = ("layers.", "norm.")
"""What names of a body's tensors begin with; others are not packed"""


class Facts(NamedTuple):
    """All that is remembered of a model, as JSON values."""

    class_name: str
    config_json: str
    layout: list[list[int]]
    kinds: list[str]
    window: int | None
    max_length: int
    shipped_attention: str
    eos_ids: list[int]
    fingerprint: str
    sketch: str
    scale: float
    softcap: float | None
    embedding: str
    """The name of the tensor"""
    output: str
    output_bias: str | None
    prefix: str
    """In front of the names of a body's tensors"""
    body: dict[str, Any]
    """What `numbers_of` says"""
    files: dict[str, str]
    """Where each tensor is"""
    tokenizer: dict[str, Any] | None
    """What `described` says, but a digest for the backend, which has a file of its own; None where
    the tokenizer is to be read by `transformers`"""


def facts_of(folder: Path, unmodified: Unmodified) -> Facts | None:
    """None where the tensors in the files are not those of the model, or a formula differs."""
    model: Any = unmodified.model
    body, output = model.base_model, model.get_output_embeddings()
    numbers = numbers_of(body)
    prefix = next((f"{n}." for n, part in model.named_modules() if part is body), None)
    if numbers is None or prefix is None or unmodified.shipped_attention is None:
        return None
    held = _Held(folder, model.state_dict(), unmodified.dtype)
    packed = [prefix + name for name in body.state_dict() if name.startswith(_BODY)]
    embedding = held.name_of(unmodified.embedding_weight)
    rows, bias = held.name_of(output.weight), getattr(output, "bias", None)
    output_bias = None if bias is None else held.name_of(bias)
    if embedding is None or rows is None or (bias is not None and output_bias is None):
        return None
    if not all(map(held.is_as_loaded, packed)):
        return None
    names = [*packed, embedding, rows, *filter(None, [output_bias])]
    architecture, layer = unmodified.architecture, unmodified.output_layer
    return Facts(
        class_name=unmodified.class_name,
        config_json=unmodified.config_json,
        layout=[list(shape) for shape in unmodified.layout],
        kinds=sorted(architecture.kinds),
        window=architecture.window,
        max_length=architecture.max_length,
        shipped_attention=unmodified.shipped_attention,
        eos_ids=list(unmodified.eos_ids),
        fingerprint=unmodified.fingerprint,
        sketch=unmodified.sketch,
        scale=layer.scale,
        softcap=layer.softcap,
        embedding=embedding,
        output=rows,
        output_bias=output_bias,
        prefix=prefix,
        body=numbers,
        files={name: held.files[name] for name in names},
        tokenizer=None,
    )


class _Held:
    """The tensors of a checkpoint's files, beside those of the model that was loaded from them."""

    def __init__(self, folder: Path, loaded: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._loaded, self._dtype = loaded, dtype
        self.files = {
            name: file for name, file in files_of_tensors(folder).items() if name in loaded
        }
        self._stored = read_tensors(folder, self.files)

    def is_as_loaded(self, name: str) -> bool:
        """Whether the files have a tensor's very numbers under its name in the model."""
        if name not in self._stored:
            return False
        stored, wanted = self._stored[name].to(self._dtype), self._loaded[name]
        return stored.dtype == wanted.dtype and torch.equal(stored, wanted)

    def name_of(self, weight: torch.Tensor) -> str | None:
        """One of the names under which the files have a weight, which may be tied to others."""
        names = (name for name, it in self._loaded.items() if it.data_ptr() == weight.data_ptr())
        return next(filter(self.is_as_loaded, names), None)
