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
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from safetensors import SafetensorError

from entmtp.data.cache import cache_dir, is_complete, new_folder, write_manifest
from entmtp.data.stored_tokenizer import StoredTokenizer, described
from entmtp.data.tokenizer import Tokenizer
from entmtp.errors import FetchError
from entmtp.target.architecture import Architecture
from entmtp.target.cache import LayerShape
from entmtp.target.checkpoint import digest_of_folder
from entmtp.target.code import code_digest
from entmtp.target.output import OutputLayer
from entmtp.target.runtimes.native.facts import Facts, facts_of
from entmtp.target.runtimes.native.stored_body import Linear, StoredBody
from entmtp.target.tensor_files import read_tensors
from entmtp.target.unmodified import Unmodified

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from entmtp.target.runtimes.native.target import NativeTarget

_FACTS, _TOKENIZER = "facts.json", "tokenizer.json"
_TOKENIZER_PACKAGES = ("tokenizers", "jinja2")
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, SafetensorError)
_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """Where facts about a checkpoint lie, and what they are good for."""

    checkpoint: Path
    dtype: torch.dtype
    folder: Path
    source: dict[str, str]

    @classmethod
    def of(cls, checkpoint: Path, dtype: torch.dtype) -> Place | None:
        """For the checkpoint in that folder as it is now; None where a file cannot be read.

        To be asked before the model is read: what is written to the checkpoint meanwhile makes
        facts worthless, not wrong.
        """
        try:
            source = {"checkpoint": digest_of_folder(checkpoint)}
        except OSError:
            return None
        source |= {"dtype": str(dtype), "code": code_digest()}
        source |= {package: version(package) for package in _TOKENIZER_PACKAGES}
        name = _digest(f"{checkpoint.resolve()} {dtype}")[:16]
        return cls(checkpoint, dtype, cache_dir() / f"known-{name}", source)


class RememberedModel(Unmodified):
    """A checkpoint of which only embeddings and the output layer are in memory."""

    is_plain = True
    known_to_fit = "native"

    def __init__(
        self,
        place: Place,
        facts: Facts,
        name: str,
        tokenizer: Tokenizer | None,
        read: Callable[[], Unmodified],
    ) -> None:
        self._folder, self._facts, self._read = place.checkpoint, facts, read
        self.dtype, self.device = place.dtype, torch.device("cpu")
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
        tensors = read_tensors(self._folder, files)
        return {name: tensor.to(self.dtype) for name, tensor in tensors.items()}


def recall(
    place: Place,
    name: str,
    tokenizer: Callable[[], Tokenizer | None],
    read: Callable[[], Unmodified],
) -> RememberedModel | None:
    """What an earlier start remembered of a checkpoint that is as it was, if one did.

    Args:
        tokenizer: reads it by `transformers`, where that is needed.
        read: reads the whole model, should anything ask for it.

    Raises:
        ModelRefused: the tokenizer cannot be read.
    """
    if not is_complete(place.folder, place.source):
        return None
    try:
        facts = _read_facts(place.folder / _FACTS)
        stored = _read_tokenizer(place.folder / _TOKENIZER, facts)
        model = RememberedModel(place, facts, name, stored, read)
    except _UNREADABLE as error:
        _log.warning("what was remembered of %s cannot be used (%s); reading it anew", name, error)
        shutil.rmtree(place.folder, ignore_errors=True)
        return None
    if stored is None:
        model.tokenizer = tokenizer()
    return model


def remember(place: Place, target: NativeTarget) -> None:
    """Write down what the next start with this checkpoint needs to know, if it can be told.

    Args:
        target: of what was read from the checkpoint; it has passed the self-check.
    """
    try:
        facts = facts_of(place.checkpoint, target.unmodified)
        if facts is None:
            return
        facts, backend = _with_tokenizer(facts, target.tokenizer)
        with new_folder(place.folder, place.source) as part:
            if backend is not None:
                (part / _TOKENIZER).write_text(backend, encoding="utf-8")
            text = json.dumps(facts._asdict())
            (part / _FACTS).write_text(f"{_digest(text)}\n{text}\n", encoding="utf-8")
            write_manifest(part, place.source)
    except (OSError, SafetensorError, FetchError) as error:
        where = place.checkpoint
        _log.warning("nothing is remembered of %s, the next start takes longer: %s", where, error)


def _with_tokenizer(facts: Facts, tokenizer: Tokenizer | None) -> tuple[Facts, str | None]:
    """The facts with the tokenizer's, and its backend, if it can be told."""
    try:
        description = described(tokenizer)
    except Exception as error:  # of no other type in the library that it asks
        _log.info("the tokenizer will be read by transformers: %s", error)
        description = None
    if description is None:
        return facts, None
    backend = description["backend"]
    return facts._replace(tokenizer={**description, "backend": _digest(backend)}), backend


def _read_facts(path: Path) -> Facts:
    """Raises ValueError, TypeError: these are not the facts that were written."""
    digest, _, text = path.read_text(encoding="utf-8").partition("\n")
    text = text.removesuffix("\n")
    if digest != _digest(text):
        raise ValueError("its file has changed since it was written")
    return Facts(**json.loads(text))


def _read_tokenizer(path: Path, facts: Facts) -> StoredTokenizer | None:
    """None where that is not how it is read.

    Raises:
        OSError, ValueError: the file is not the one that was written.
    """
    if facts.tokenizer is None:
        return None
    backend = path.read_text(encoding="utf-8")
    if _digest(backend) != facts.tokenizer["backend"]:
        raise ValueError("the tokenizer's file has changed since it was written")
    return StoredTokenizer(**{**facts.tokenizer, "backend": backend})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
