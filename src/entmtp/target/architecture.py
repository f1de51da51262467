"""What a configuration says about layers, windows and positions; and what of it is refused.

Knows: the words of `transformers`' configurations. Does not know: weights, caches, masks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from entmtp.errors import ModelRefused

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FULL, SLIDING = "full_attention", "sliding_attention"

_OWN_ROPE_TYPES = frozenset({"default", "axial"})
"""Rope types that `transformers` does not name because each model computes them itself."""
_SUBSTITUTE = "use another model"
_LONGEST_CONTEXT = 2**31
"""No model has such a context: a configuration that says so is broken."""


class Architecture(NamedTuple):
    """What masks a model needs and how far it goes."""

    kinds: frozenset[str]
    """`full_attention`, `sliding_attention` or both"""
    window: int | None
    """A sliding layer sees keys whose position is greater than the query's less this."""
    max_length: int
    """Tokens of a sequence, prompt and answer together"""


def read_architecture(config: PreTrainedConfig) -> Architecture:
    """What a text configuration asks for.

    Raises:
        ModelRefused: it asks for something that a tree of drafts cannot be verified with.
    """
    kinds, window = _layer_kinds(config), getattr(config, "sliding_window", None)
    if odd := kinds - {FULL, SLIDING}:
        raise ModelRefused(
            f"{config.model_type} has layers of kind {', '.join(sorted(odd))}; tree decoding needs"
            f" full or sliding attention in every layer; {_SUBSTITUTE}"
        )
    if SLIDING in kinds and not window:
        raise ModelRefused(
            f"{config.model_type} has sliding layers but no sliding_window; {_SUBSTITUTE}"
        )
    if window is not None and type(window) is not int:
        raise ModelRefused(
            f"sliding_window is {window!r}; expected a number of tokens: put the model's"
            " config.json right"
        )
    _refuse_order_in_cache(config)
    return Architecture(kinds, window if SLIDING in kinds else None, _max_length(config))


def _layer_kinds(config: PreTrainedConfig) -> frozenset[str]:
    """`layer_types`, or what older configurations say instead."""
    if kinds := getattr(config, "layer_types", None):
        return frozenset(kinds)
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return frozenset({SLIDING if slides else FULL})


def _refuse_order_in_cache(config: PreTrainedConfig) -> None:
    """Refuse what looks at where a key lies: a tree's nodes do not lie where they stand."""
    alibi = getattr(config, "alibi", False) or getattr(
        getattr(config, "attn_config", None), "alibi", False
    )
    if alibi:
        raise ModelRefused(
            f"{config.model_type} with alibi places tokens by their order in the cache, and a"
            f" tree's nodes lie there in another; {_SUBSTITUTE}"
        )
    if getattr(config, "attention_layers", None):
        raise ModelRefused(
            f"{config.model_type} puts a mask of its own, made from the order in the cache, over"
            f" every other, and a tree's nodes lie there in another; {_SUBSTITUTE}"
        )


def _max_length(config: PreTrainedConfig) -> int:
    """The context; of a rope that changes with the length, only the part in which it does not.

    Past that `transformers` itself rotates a token by the length of the forward that it came in,
    so that its logits depend on how the text was cut into forwards.
    """
    length = getattr(config, "max_position_embeddings", None)
    if length is None:
        raise ModelRefused(
            f"{config.model_type} has no max_position_embeddings: it seems to place tokens by their"
            f" order in the cache, and a tree's nodes lie there in another; {_SUBSTITUTE}"
        )
    if not 0 < int(length) < _LONGEST_CONTEXT:
        raise ModelRefused(
            f"max_position_embeddings is {length}; expected the length of the context in tokens:"
            " put the model's config.json right"
        )
    return min([int(length), *(_steady_length(config, rope) for rope in rope_parameters(config))])


def _steady_length(config: PreTrainedConfig, rope: dict[str, Any]) -> int:
    """How far a rope is the same for every length. `dynamic` changes past the whole context."""
    kind = rope_type(rope)
    if kind not in _named_ropes() and kind not in _OWN_ROPE_TYPES:
        raise ModelRefused(unknown_rope(config, kind))
    whole = int(config.max_position_embeddings)
    return int(rope.get("original_max_position_embeddings", whole)) if kind == "longrope" else whole


def unknown_rope(config: PreTrainedConfig, kind: str) -> str:
    """What to say of a rope type that nobody has heard of."""
    known = ", ".join(sorted({"default", *_named_ropes()}))
    return f"{config.model_type} asks for the rope type {kind!r}; known are {known}; {_SUBSTITUTE}"


def _named_ropes() -> frozenset[str]:
    # Imported here, because it costs half a second that a known model does not need.
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    return frozenset(ROPE_INIT_FUNCTIONS)


def rope_type(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")


def rope_parameters(config: PreTrainedConfig) -> list[dict[str, Any]]:
    """The sets of rope parameters of a model: none, one, or one for each kind of layer."""
    given = getattr(config, "rope_parameters", None) or {}
    nested = [rope for rope in given.values() if isinstance(rope, dict)]
    return nested or ([given] if given else [])
