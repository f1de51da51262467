"""Attention over the used part of a preallocated cache, with any mask, grouped queries folded.

Knows: query, key and value tensors, a ready mask, and every option of `transformers`' models that
changes the result. Does not know: trees, sequences, lengths.

Dimension key: B batch · T query rows · S used cache length · D head size ·
N attention heads · G queries per key/value head.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from entmtp.errors import BadInput, ModelRefused

ATTENTION_NAME = "entmtp"
"""The name under which the function is registered with `transformers`."""

_HARMLESS = frozenset(
    {
        "sliding_window",  # the mask carries it
        "is_causal",  # only asked where there is no mask
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
    }
)
"""Options of `transformers`' models that do not change the result of attention with a mask."""


def fold_mask(mask: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Repeat a mask `[B, 1, T, S]` for the folded query axis: `[B, 1, G·T, S]`."""
    if num_groups == 1:
        return mask
    batch, _, rows, used = mask.shape
    return mask.expand(batch, num_groups, rows, used).reshape(batch, 1, num_groups * rows, used)


def folded_attention(
    module: nn.Module,
    query: torch.Tensor,  # [B, N, T, D]
    key: torch.Tensor,  # [B, N/G, S, D]
    value: torch.Tensor,  # [B, N/G, S, D]
    attention_mask: torch.Tensor | None,  # [B, 1, T, S], boolean or additive; None = all visible
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Scaled dot-product attention in the form that `AttentionInterface` expects.

    The queries that share a key head are laid side by side on the row axis instead of repeating
    keys and values for them: the cache is read once (DESIGN D1).

    Args:
        options: `softcap` (Gemma-2) and `s_aux` (the sinks of gpt-oss, `[N]`) are honoured; one
            that is not known to leave the result alone is refused.

    Returns the output `[B, T, N, D]` and no weights.

    Raises:
        ModelRefused: the model passes an option that this function would have to drop.
    """
    softcap, sinks = options.pop("softcap", None), options.pop("s_aux", None)
    if unknown := unknown_options(options):
        raise ModelRefused(
            f"the model's attention takes the option {', '.join(unknown)}, which is not known to"
            " leave tree decoding exact; use another model"
        )
    batch, num_heads, rows, head_dim = query.shape
    if attention_mask is None and rows > 1:
        _demand_mask()
    num_kv_heads, groups = key.shape[1], num_heads // key.shape[1]
    folded = query.reshape(batch, num_kv_heads, groups * rows, head_dim)
    mask = None if attention_mask is None else fold_mask(attention_mask, groups)
    if softcap is None and sinks is None:
        output = scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    else:
        scores = _scores(folded, key, mask, scaling, softcap)
        if sinks is not None:
            scores = _with_sinks(scores, sinks)
        output = scores.softmax(-1)[..., : key.shape[2]].to(value.dtype) @ value
    output = output.reshape(batch, num_heads, rows, value.shape[-1])
    return output.transpose(1, 2), None


def _demand_mask() -> NoReturn:
    # `transformers` makes no mask for attention that it does not know: all would be visible.
    raise BadInput(
        f"attention {ATTENTION_NAME!r} needs a ready 4-D mask; to use this model outside of"
        " entmtp, call set_attn_implementation('sdpa') on it first"
    )


def _scores(
    query: torch.Tensor,  # [B, M, R, D]
    key: torch.Tensor,  # [B, M, S, D]
    mask: torch.Tensor | None,  # [B, 1, R, S]
    scaling: float | None,
    softcap: float | None,
) -> torch.Tensor:
    """Float32 scores `[B, M, R, S]`, squashed into ±softcap before the mask."""
    scores = (query @ key.mT).float() * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask


def _with_sinks(
    scores: torch.Tensor,  # [B, M, G·T, S]
    sinks: torch.Tensor,  # [N] = [M·G]
) -> torch.Tensor:
    """One more key, which takes weight and gives nothing: `[B, M, G·T, S + 1]`."""
    batch, num_kv_heads, rows, _ = scores.shape
    groups = len(sinks) // num_kv_heads
    folded = sinks.to(scores).reshape(1, num_kv_heads, groups, 1)
    folded = folded.expand(batch, -1, -1, rows // groups)
    return torch.cat([scores, folded.reshape(batch, num_kv_heads, rows, 1)], -1)


def unknown_options(options: dict[str, Any]) -> list[str]:
    """Options that are set and may change the result. False and 0 switch whatever it is off."""
    return sorted(name for name, value in options.items() if _is_set(name, value))


def _is_set(name: str, value: Any) -> bool:
    return name not in _HARMLESS and (isinstance(value, torch.Tensor) or bool(value))


@cache
def register_attention() -> None:
    """Make the function known to `transformers`, once."""
    # Imported here, because it costs seconds that a runtime without such models does not need.
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION_NAME, folded_attention)
