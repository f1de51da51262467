"""What a model's cache looks like, read off the model itself; and misfits turned into refusals.

Knows: an unmodified `transformers` model. Does not know: our cache's content, masks, trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from entmtp.errors import ModelRefused
from entmtp.target.attention import ATTENTION_NAME
from entmtp.target.cache import LayerShape

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


def takes_our_attention(model: PreTrainedModel) -> bool:
    """Whether every layer asks `AttentionInterface`; the others are used with attention of theirs.

    Falcon, for one, carries its own, which takes a mask of ours all the same.
    """
    return bool(model._can_set_attn_implementation())


def shipped_attention(model: PreTrainedModel) -> str:
    """The name of the attention that a model came with, to compare ours with."""
    name = str(model.config._attn_implementation)
    if name != ATTENTION_NAME:
        return name
    # It was wrapped before.
    return "sdpa" if getattr(model, "_supports_sdpa", False) else "eager"


@torch.inference_mode()
def probe_layout(model: PreTrainedModel) -> list[LayerShape]:
    """Read each layer's cache shape off a one-token forward, not off the configuration.

    A configuration's `head_dim` is missing or wrong for several architectures.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

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
        if layer.keys.shape[2] != 1:
            raise ModelRefused(
                f"{model.config.model_type} keeps {layer.keys.shape[2]} rows for one token; tree"
                " decoding needs one a token; use another model"
            )
        layout.append(LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]))
    if not layout:
        raise ModelRefused(
            f"{model.config.model_type} kept no keys and values; it seems recurrent, and tree"
            " decoding needs attention in every layer; use another model"
        )
    return layout
