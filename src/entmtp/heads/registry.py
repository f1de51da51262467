"""The kinds of heads and how to make new ones for a target.

Knows: which class serves which kind, and what a target's configuration says of its layers.
Does not know: files, training.
"""

from __future__ import annotations

from typing import Any

import torch

from entmtp.errors import HeadsError
from entmtp.heads.base import DraftHeads, HeadsConfig, PrefixShape
from entmtp.heads.hydra import HydraHeads
from entmtp.heads.medusa import MedusaHeads
from entmtp.target.model import TargetModel

KINDS: dict[str, type[DraftHeads]] = {
    "medusa": MedusaHeads,
    "hydra": HydraHeads,
    "hydra++": HydraHeads,
}


OUTPUTS = ("target", "own", "projected")
MAX_COUNT = 64
"""Of heads, and of blocks in each: a file that says more is broken."""


def build_heads(config: HeadsConfig) -> DraftHeads:
    """Heads of the given sizes with starting weights.

    Raises:
        HeadsError: the kind is unknown, or the sizes contradict one another.
    """
    if config.kind not in KINDS:
        raise HeadsError(f"unknown kind of heads {config.kind!r}; known: {', '.join(KINDS)}")
    if config.output not in OUTPUTS:
        raise HeadsError(f"unknown output layer {config.output!r}; known: {', '.join(OUTPUTS)}")
    if config.output == "projected" and config.kind != "medusa":
        raise HeadsError(
            f"{config.kind} heads have a matrix of their own already; use output target instead"
        )
    counts = config.num_draft_heads, config.num_layers
    if min(counts) < 1 or max(counts) > MAX_COUNT:
        raise HeadsError(
            f"{config.num_draft_heads} draft heads of {config.num_layers} layers; both must be at"
            f" least 1 and at most {MAX_COUNT}"
        )
    if not 0 < config.draft_vocab_size <= config.vocab_size:
        raise HeadsError(
            f"a draft vocabulary of {config.draft_vocab_size} tokens does not fit a vocabulary of"
            f" {config.vocab_size}; choose a size between 1 and that"
        )
    if (config.kind == "hydra++") != (config.prefix is not None):
        raise HeadsError(f"{config.kind} heads and a prefix layer: only hydra++ has one")
    return KINDS[config.kind](config)


def prefix_shape(target: TargetModel) -> PrefixShape:
    """A prefix layer of the shape of the target's own layers."""
    config: Any = target.config
    num_heads = int(config.num_attention_heads)
    rope = getattr(config, "rope_parameters", None) or {}
    return PrefixShape(
        num_attention_heads=num_heads,
        num_kv_heads=int(getattr(config, "num_key_value_heads", None) or num_heads),
        head_dim=int(getattr(config, "head_dim", None) or target.hidden_size // num_heads),
        # GPT-2 and its kin do not say; four times is what they use.
        intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * target.hidden_size),
        rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-5)),
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        max_length=int(target.max_length),
    )


def start_from_target(heads: DraftHeads, target: TargetModel) -> None:
    """Copy the target's output rows into output layers that are the heads' own."""
    if heads.config.output != "own":
        return
    ids = slice(None) if heads.draft_ids is None else heads.draft_ids
    with torch.no_grad():
        heads.output_weight.copy_(target.output_weight[ids].expand_as(heads.output_weight))
        if heads.has_output_bias and target.output_bias is not None:
            heads.output_bias.copy_(target.output_bias[ids].expand_as(heads.output_bias))
