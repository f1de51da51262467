"""A checkpoint that ran here before: what a start needs to know of it, without `transformers`.

Knows: facts about a model in a small file of the user's cache, the state of the checkpoint's folder
that they are good for, and which tensors there are which weights. Does not know: how weights are
packed, how models are spelt.

Nothing is guessed: what is written down was compared, bit for bit, with the model that
`transformers` had loaded, once the self-check was passed.

Dimension key: V vocabulary · H hidden size.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors import SafetensorError

from entmtp.data.cache import cache_dir, is_complete, new_folder, write_manifest
from entmtp.errors import FetchError
from entmtp.target.architecture import Architecture
from entmtp.target.cache import LayerShape
from entmtp.target.checkpoint import digest_of_folder
from entmtp.target.code import code_digest
from entmtp.target.output import OutputLayer
from entmtp.target.runtimes.native.stored_body import Linear, StoredBody, numbers_of
from entmtp.target.tensor_files import files_of_tensors, read_tensors
from entmtp.target.unmodified import Unmodified

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from entmtp.target.runtimes.native.target import NativeTarget

_FACTS = "facts.json"
_BODY = ("layers.", "norm.")
"""What names of a body's tensors begin with; others are not packed"""
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError)
_log = logging.getLogger(__name__)


class _Facts(NamedTuple):
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


class RememberedModel(Unmodified):
    """A checkpoint of which only embeddings and the output layer are in memory."""

    is_plain = True
    known_to_fit = "native"

    def __init__(
        self,
        folder: Path,
        facts: _Facts,
        dtype: torch.dtype,
        name: str,
        tokenizer: PreTrainedTokenizerBase | None,
        read: Callable[[], Unmodified],
    ) -> None:
        self._folder, self._facts, self._read = folder, facts, read
        self.dtype, self.device = dtype, torch.device("cpu")
        self.tokenizer = tokenizer
        self.name = name
        self.layout = tuple(LayerShape(*shape) for shape in facts.layout)
        self.architecture = Architecture(frozenset(facts.kinds), facts.window, facts.max_length)
        self.shipped_attention = facts.shipped_attention
        self.class_name, self.config_json = facts.class_name, facts.config_json
        self.eos_ids = tuple(facts.eos_ids)
        names = {facts.embedding, facts.output, *filter(None, [facts.output_bias])}
        # Copies: the checkpoint may be written anew while this model is in use.
        held = {each: tensor.clone() for each, tensor in self._tensors(names).items()}
        self._embedding = held[facts.embedding]
        bias = None if facts.output_bias is None else held[facts.output_bias]
        self.output_layer = OutputLayer(
            Linear(held[facts.output], bias), facts.scale, facts.softcap
        )

    @cached_property
    def model(self) -> PreTrainedModel:
        return self._read().model

    @property
    def embedding_weight(self) -> torch.Tensor:
        return self._embedding

    @property
    def fingerprint(self) -> str:
        return self._facts.fingerprint

    @property
    def sketch(self) -> str:
        return self._facts.sketch

    def body(self) -> StoredBody:
        """The layers, which are to be packed at once: their tensors lie in the files."""
        prefix = self._facts.prefix
        names = {name for name in self._facts.files if name.startswith(prefix)}
        tensors = self._tensors(names)
        return StoredBody(
            {name.removeprefix(prefix): tensor for name, tensor in tensors.items()},
            self._facts.body,
        )

    def _tensors(self, names: set[str]) -> dict[str, torch.Tensor]:
        files = {name: self._facts.files[name] for name in names}
        return read_tensors(self._folder, files, self.dtype)


def recall(
    folder: Path,
    dtype: torch.dtype,
    name: str,
    tokenizer: Callable[[], PreTrainedTokenizerBase | None],
    read: Callable[[], Unmodified],
) -> RememberedModel | None:
    """What an earlier start remembered of the checkpoint in `folder` as it is now, if one did.

    Args:
        tokenizer: reads it.
        read: reads the whole model, should anything ask for it.

    Raises:
        ModelRefused: the tokenizer cannot be read.
    """
    try:
        place, source = _place(folder, dtype)
    except OSError:
        return None
    if not is_complete(place, source):
        return None
    try:
        facts = _read_facts(place / _FACTS)
        model = RememberedModel(folder, facts, dtype, name, None, read)
    except _UNREADABLE as error:
        _log.warning("what was remembered of %s cannot be used (%s); reading it anew", name, error)
        shutil.rmtree(place, ignore_errors=True)
        return None
    model.tokenizer = tokenizer()
    return model


def remember(folder: Path, target: NativeTarget) -> None:
    """Write down what the next start with this checkpoint needs to know, if it can be told.

    Args:
        target: of what was read from `folder`; it has passed the self-check.
    """
    try:
        facts = _facts_of(folder, target.unmodified)
        if facts is None:
            return
        place, source = _place(folder, target.dtype)
        with new_folder(place, source) as part:
            text = json.dumps(facts._asdict())
            (part / _FACTS).write_text(f"{_digest(text)}\n{text}\n", encoding="utf-8")
            write_manifest(part, source)
    except (OSError, SafetensorError, FetchError) as error:
        _log.warning("nothing is remembered of %s, the next start takes longer: %s", folder, error)


def _facts_of(folder: Path, unmodified: Unmodified) -> _Facts | None:
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
    return _Facts(
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
    )


class _Held:
    """The tensors of a checkpoint's files, beside those of the model that was loaded from them."""

    def __init__(self, folder: Path, loaded: dict[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._folder, self._loaded, self._dtype = folder, loaded, dtype
        self.files = files_of_tensors(folder)

    def is_as_loaded(self, name: str) -> bool:
        """Whether the files have a tensor's very numbers under its name in the model."""
        if name not in self.files:
            return False
        wanted = self._loaded[name]
        (stored,) = read_tensors(self._folder, {name: self.files[name]}, self._dtype).values()
        return wanted.dtype == stored.dtype and torch.equal(stored, wanted)

    def name_of(self, weight: torch.Tensor) -> str | None:
        """One of the names under which the files have a weight, which may be tied to others."""
        names = (name for name, it in self._loaded.items() if it.data_ptr() == weight.data_ptr())
        return next(filter(self.is_as_loaded, names), None)


def _place(folder: Path, dtype: torch.dtype) -> tuple[Path, dict[str, str]]:
    """Where the facts lie, and what they are good for.

    Raises:
        OSError: a file of the checkpoint cannot be read.
    """
    source = {
        "checkpoint": digest_of_folder(folder),
        "dtype": str(dtype),
        "code": code_digest(),
    }
    name = _digest(f"{folder.resolve()} {dtype}")[:16]
    return cache_dir() / f"known-{name}", source


def _read_facts(path: Path) -> _Facts:
    """Raises ValueError, TypeError: these are not the facts that were written."""
    digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    text = text.removesuffix("\n")
    if digest != _digest(text):
        raise ValueError("its file has changed since it was written")
    return _Facts(**json.loads(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
