"""The target model behind a small protocol: ids, positions, mask and cache in, hidden states out.

Knows: an unmodified `transformers` causal language model and what may be read off it.
Does not know: heads, trees, sampling, text.

Dimension key: B batch · T rows · H hidden size · V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from entmtp.errors import ModelRefused
from entmtp.target.attention import ATTENTION_NAME
from entmtp.target.cache import KVCache, LayerShape
from entmtp.target.masks import additive, causal_among, step_mask

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

PREFILL_CHUNK = 256
"""Prompt tokens of one forward: the mask of a chunk is `[256, S]`, however long the prompt is."""
_LONGEST_CONTEXT = 2**31
"""No model has such a context: a configuration that says so is broken."""


class TargetModel:
    """A model whose output must be kept, ready for tree decoding."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        name: str,
        layout: Sequence[LayerShape],
    ) -> None:
        self._model = model
        self._body: Any = model.base_model
        self._input_layer: Any = model.get_input_embeddings()
        self._output_layer: Any = model.get_output_embeddings()
        self._layout = tuple(layout)
        self.tokenizer = tokenizer
        self.name = name
        config = model.config.get_text_config()
        self.config: PreTrainedConfig = config
        self.hidden_size: int = self.output_weight.shape[1]
        self.vocab_size: int = self.output_weight.shape[0]
        self.num_layers = len(layout)
        self.max_length = _context_length(config)
        self.eos_ids = _eos_ids(model)

    @classmethod
    def from_transformers(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "model",
    ) -> TargetModel:
        """Wrap a loaded model. It is put into evaluation mode and given our attention function.

        Raises:
            ModelRefused: the model keeps a state that a tree cannot be verified with.
        """
        if model.get_output_embeddings() is None:
            raise ModelRefused(
                f"{model.config.model_type} has no output layer; give a causal language model"
            )
        model.eval()
        model.requires_grad_(False)
        refuse_unknown_state(model)
        model.set_attn_implementation(ATTENTION_NAME)
        return cls(model, tokenizer, name, probe_layout(model))

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def dtype(self) -> torch.dtype:
        return self._model.dtype

    @property
    def transformers_model(self) -> PreTrainedModel:
        return self._model

    @property
    def embedding_weight(self) -> torch.Tensor:  # [V, H]
        weight: torch.Tensor = self._input_layer.weight
        return weight

    @property
    def output_weight(self) -> torch.Tensor:  # [V, H]
        weight: torch.Tensor = self._output_layer.weight
        return weight

    @property
    def output_bias(self) -> torch.Tensor | None:  # [V]
        return getattr(self._output_layer, "bias", None)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache:
        """An empty cache for `batch_size` sequences of `capacity` tokens, drafts included."""
        return KVCache.allocate(
            self._layout, batch_size, capacity, dtype=self.dtype, device=self.device
        )

    def forward(
        self,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool: which of the new rows see which
        cache: KVCache,
    ) -> torch.Tensor:
        """Hidden states `[B, T, H]` after the final norm; writes T cache rows, moves no length."""
        cache.reserve(max(cache.lengths) + ids.shape[1])
        mask = additive(step_mask(cache.lengths, among), self.dtype)
        output = self._body(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            cache=cache,
            use_cache=True,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[..., V]` of hidden states `[..., H]`, never rounded to 16 bits (D3a)."""
        if hidden.is_cuda and hidden.dtype != torch.float32:
            flat = hidden.reshape(-1, hidden.shape[-1])
            product = torch.mm(flat, self.output_weight.t(), out_dtype=torch.float32)
            logits = product.reshape(*hidden.shape[:-1], -1)
        else:
            logits = torch.nn.functional.linear(hidden.float(), self._output_weight_fp32)
        return logits if self.output_bias is None else logits + self.output_bias.float()

    @cached_property
    def _output_weight_fp32(self) -> torch.Tensor:
        """CPU products of 16-bit matrices round their result; a float32 copy does not."""
        return self.output_weight.float()

    def prefill(self, ids: torch.Tensor, cache: KVCache) -> Iterator[torch.Tensor]:
        """Commit prompt ids `[1, P]` of the only sequence of `cache`; yields hidden `[1, A, H]`.

        In chunks, so that a long prompt needs no `[P, P]` mask.
        """
        for chunk in ids.split(PREFILL_CHUNK, dim=1):
            rows = chunk.shape[1]
            positions = cache.length + torch.arange(rows, device=ids.device)[None]
            hidden = self.forward(chunk, positions, causal_among(1, rows, ids.device), cache)
            cache.advance([rows])
            yield hidden

    @cached_property
    def fingerprint(self) -> str:
        """Names these weights: the same for every dtype that they are loaded in.

        SHA-256 over the architecture and 64 strided values of each parameter, rounded to bf16.
        """
        config = {
            "model_type": self.config.model_type,
            "hidden_size": self.hidden_size,
            "vocab_size": self.vocab_size,
            "num_layers": self.num_layers,
        }
        digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
        for name, weight in sorted(self._model.named_parameters()):
            flat = weight.detach().reshape(-1)
            sample = flat[:: max(1, flat.numel() // 64)][:64].float().to(torch.bfloat16)
            digest.update(name.encode())
            digest.update(sample.cpu().view(torch.int16).numpy().tobytes())
        return digest.hexdigest()[:16]


def _eos_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """End-of-sequence ids; the generation config wins over the model config."""
    generation = getattr(model, "generation_config", None)
    ids = getattr(generation, "eos_token_id", None)
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


def _context_length(config: PreTrainedConfig) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if length is None:
        raise ModelRefused(
            f"{config.model_type} has no max_position_embeddings: it seems to place tokens by their"
            " order in the cache, and a tree's nodes lie there in another; use another model"
        )
    if not 0 < int(length) < _LONGEST_CONTEXT:
        raise ModelRefused(
            f"max_position_embeddings is {length}; expected the length of the context in tokens:"
            " put the model's config.json right"
        )
    return int(length)


def refuse_unknown_state(model: PreTrainedModel) -> None:
    """Refuse, by the name of the layer kind, what a tree of drafts cannot be verified with.

    A sliding window that covers the whole context never slides, and is fine.
    """
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    context = getattr(config, "max_position_embeddings", None)
    odd = _layer_kinds(config) - {"full_attention"}
    if isinstance(window, int) and isinstance(context, int) and window >= context > 0:
        odd.discard("sliding_attention")
    if odd:
        size = f" (window {window}, context {context})" if "sliding_attention" in odd else ""
        raise ModelRefused(
            f"{config.model_type} has layers of kind {', '.join(sorted(odd))}{size}; tree decoding"
            " needs full attention in every layer; use another model"
        )


def _layer_kinds(config: PreTrainedConfig) -> set[str]:
    """`layer_types`, or what older configurations say instead."""
    if kinds := getattr(config, "layer_types", None):
        return set(kinds)
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return {"sliding_attention" if slides else "full_attention"}


@contextmanager
def refusing_misfits(model: PreTrainedModel) -> Iterator[None]:
    """A model whose code cannot take what ours hands it is refused, not crashed on."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ModelRefused(
            f"{model.config.model_type} does not run with given positions, mask and cache"
            f" ({type(error).__name__}: {' '.join(str(error).split())}); use another model"
        ) from error


@torch.inference_mode()
def probe_layout(model: PreTrainedModel) -> list[LayerShape]:
    """Read each layer's cache shape off a one-token forward, not off the configuration.

    A configuration's `head_dim` is missing or wrong for several architectures.
    """
    cache = DynamicCache()
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    positions = torch.zeros_like(ids)
    with refusing_misfits(model):
        model.base_model(input_ids=ids, position_ids=positions, cache=cache, use_cache=True)
    layout = []
    for index, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer or layer.keys is None:
            raise ModelRefused(
                f"layer {index} of {model.config.model_type} keeps {type(layer).__name__} state;"
                " tree decoding needs plain keys and values; use another model"
            )
        assert layer.values is not None, "a layer with keys has values"
        layout.append(LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]))
    if not layout:
        raise ModelRefused(
            f"{model.config.model_type} kept no keys and values; it seems recurrent, and tree"
            " decoding needs attention in every layer; use another model"
        )
    return layout
