"""The unmodified model behind a target, and what is known of it.

Knows: a `transformers` causal language model that is loaded. Does not know: trees, caches, which
runtime computes its forward.

Dimension key: H hidden size · V vocabulary.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import torch

from entmtp.data.tokenizer import Tokenizer
from entmtp.errors import ModelRefused
from entmtp.target.architecture import Architecture
from entmtp.target.cache import LayerShape
from entmtp.target.fingerprint import fingerprint, sketch
from entmtp.target.output import OutputLayer, is_plain, plain_weight

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


class Unmodified(ABC):
    """What all runtimes of a model share; the model itself may be read no earlier than `model`."""

    tokenizer: Tokenizer | None
    name: str
    layout: tuple[LayerShape, ...]
    architecture: Architecture
    shipped_attention: str | None
    """The name of what our attention stands in for; None where the model keeps its own"""
    output_layer: OutputLayer
    dtype: torch.dtype
    device: torch.device
    class_name: str
    """Of the model's class in `transformers`"""
    config_json: str
    """The text configuration"""
    eos_ids: tuple[int, ...]
    is_plain: bool
    """Whether all weights are ordinary tensors, none packed by a quantisation package"""
    known_to_fit: str | None = None
    """The runtime on which an earlier start has found that all is well"""

    @property
    @abstractmethod
    def model(self) -> PreTrainedModel:
        """The model, in evaluation mode and with our attention where it takes that."""

    @property
    def config(self) -> PreTrainedConfig:
        """The text configuration."""
        return self.model.config.get_text_config()

    def with_window(self, window: int) -> Self:
        """The same model, of which another sliding window is said."""
        other = copy.copy(self)
        other.architecture = self.architecture._replace(window=window)
        return other

    @property
    @abstractmethod
    def embedding_weight(self) -> torch.Tensor:
        """`[V, H]`"""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Names the weights."""

    @property
    @abstractmethod
    def sketch(self) -> str:
        """Some of the weights' values, to be compared with a tolerance (`is_alike`)."""


class LoadedModel(Unmodified):
    """A model in memory."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer | None,
        name: str,
        layout: Sequence[LayerShape],
        architecture: Architecture,
        shipped_attention: str | None,
    ) -> None:
        self._model = model
        self.tokenizer = tokenizer
        self.name = name
        self.layout = tuple(layout)
        self.architecture = architecture
        self.shipped_attention = shipped_attention
        self.output_layer = OutputLayer.of(model)
        self.dtype, self.device = model.dtype, model.device
        self.class_name = type(model).__name__
        self.eos_ids = _eos_ids(model)

    @property
    def model(self) -> PreTrainedModel:
        return self._model

    @property
    def config_json(self) -> str:  # type: ignore[override]  # it may change until it is asked for
        return self.config.to_json_string()

    @cached_property
    def is_plain(self) -> bool:  # type: ignore[override]
        return all(map(is_plain, self._model.parameters()))

    @property
    def embedding_weight(self) -> torch.Tensor:
        return plain_weight(self._model.get_input_embeddings())

    @cached_property
    def fingerprint(self) -> str:
        vocab_size, hidden_size = self.output_layer.weight.shape
        config = {
            "model_type": self.config.model_type,
            "hidden_size": hidden_size,
            "vocab_size": vocab_size,
            "num_layers": len(self.layout),
        }
        return fingerprint(self._model, config)

    @cached_property
    def sketch(self) -> str:
        return sketch(self._model)


def demand_rows(model: PreTrainedModel) -> None:
    """What can be said must be readable: an id without an input row would end in an index error.

    Raises:
        ModelRefused: there is no output layer, or it has more rows than the input layer.
    """
    if model.get_output_embeddings() is None:
        raise ModelRefused(
            f"{model.config.model_type} has no output layer; give a causal language model"
        )
    said, read = (
        plain_weight(layer).shape[0]
        for layer in (model.get_output_embeddings(), model.get_input_embeddings())
    )
    if said > read:
        raise ModelRefused(
            f"{model.config.model_type} has {said} output rows and {read} input embeddings, so that"
            " it can say tokens that it cannot read; resize them to the same number"
        )


def _eos_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """End-of-sequence ids; the generation config wins over the model config."""
    generation = getattr(model, "generation_config", None)
    ids: Any = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = getattr(model.config.get_text_config(), "eos_token_id", None)
    if ids is None:
        return ()
    listed = ids if isinstance(ids, (list, tuple)) else [ids]
    if not all(type(each) is int for each in listed):
        raise ModelRefused(
            f"the model's eos_token_id is {ids!r}; expected an id or a list of ids: put its"
            " generation_config.json or config.json right"
        )
    return tuple(listed)
