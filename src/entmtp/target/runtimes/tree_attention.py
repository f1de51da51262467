"""Kernels for the attention of a verification on a GPU, by name.

Knows: how `transformers` is told to use one, and what it wants to be told itself. Does not know:
caches, trees. All of them take any mask; `scripts/gpu_check.py` measures them against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface, PreTrainedModel

from entmtp.errors import BadInput
from entmtp.target.attention import ATTENTION_NAME

ATTENTIONS = ("sdpa", "flex", "triton")


class TreeAttention(NamedTuple):
    """One kernel."""

    name: str
    """By which `transformers` knows it"""
    knows_ends: bool = False
    """Whether it looks at where rows of memory end, and goes no further"""

    @contextmanager
    def within(self, model: PreTrainedModel) -> Iterator[None]:
        """The model computes with it inside the block."""
        if self.name == ATTENTION_NAME:
            yield
            return
        model.set_attn_implementation(self.name)
        try:
            yield
        finally:
            model.set_attn_implementation(ATTENTION_NAME)

    def options(self, ends: torch.Tensor) -> dict[str, Any]:
        """What the forward hands to the kernel besides queries, keys, values and mask."""
        return {"tree_ends": ends} if self.knows_ends else {}


def tree_attention(name: str) -> TreeAttention:
    """The kernel of this name, ready for use.

    Raises:
        BadInput: there is none, or it needs what is not installed.
    """
    if name not in ATTENTIONS:
        raise BadInput(f"unknown attention {name!r}; expected one of {', '.join(ATTENTIONS)}")
    if name == "sdpa":
        return TreeAttention(ATTENTION_NAME)
    if find_spec("triton") is None:
        raise BadInput(f"attention {name} needs triton, which is not installed; use sdpa")
    if name == "flex":
        from entmtp.target.runtimes.flex_attention import flex_tree_attention

        AttentionInterface.register("entmtp_flex", flex_tree_attention)
        return TreeAttention("entmtp_flex")
    from entmtp.target.runtimes.triton_attention import triton_tree_attention

    AttentionInterface.register("entmtp_triton", triton_tree_attention)
    return TreeAttention("entmtp_triton", knows_ends=True)
