"""Medusa as its authors publish it: every head with its own output layer.

Knows: the names `{head}.{block}.linear.*` and `{head}.{L}.weight`, alone or behind a prefix
(METHOD §3, PEERS §6.2). Does not know: files, other layouts.
"""

from __future__ import annotations

import torch

from entmtp.heads.base import DraftHeads, HeadsConfig
from entmtp.heads.published.layout import (
    Files,
    Layout,
    Reading,
    count,
    demand,
    full_output,
    hidden_size,
    one_for_all,
    output_ids,
    refuse_draft_vocabulary,
    refuse_kind,
    refuse_own_blocks,
    say_if_other,
    stacked,
    without_prefix,
)
from entmtp.heads.published.source import Source
from entmtp.target.model import TargetModel

NAME = "medusa-v1"
PREFIXES = ("medusa_head.", "medusa_heads.")
_HEAD = r"(\d+)\.(\d+)\.(?:linear\.weight|linear\.bias|weight)"
_OUTPUT = r"(\d+)\.(\d+)\.weight"


def num_draft_heads(source: Source) -> int:
    source = without_prefix(source, PREFIXES)
    return count(source, _HEAD) if count(source, _OUTPUT) else 0


def read(source: Source, target: TargetModel) -> Reading:
    source = without_prefix(source, PREFIXES)
    heads = range(count(source, _HEAD))
    layers = max(1, count(source, _OUTPUT, group=2) - 1)
    outputs = [f"{head}.{layers}.weight" for head in heads]
    hidden = hidden_size(source, "0.0.linear.weight", target)
    ids = output_ids(source, outputs[0], target)
    num_rows = target.vocab_size if ids is None else len(ids)
    places = block_places(source, len(heads), layers)
    demand(
        source,
        {
            **{f"{place}.weight": (hidden, hidden) for row in places for place in row},
            **{f"{place}.bias": (hidden,) for row in places for place in row},
            **dict.fromkeys(outputs, (num_rows, hidden)),
        },
    )
    say_if_other(source, "medusa_num_heads", len(heads))
    say_if_other(source, "medusa_num_layers", layers)
    config = HeadsConfig(
        "medusa", hidden, target.vocab_size, len(heads), layers, num_rows, output="own"
    )
    tensors = {**read_blocks(source, places), "output_weight": stacked(source, outputs)}
    if ids is not None:
        tensors["draft_ids"] = ids
    return Reading(config, tensors)


def block_places(source: Source, num_heads: int, num_layers: int) -> list[list[str]]:
    """For each head, where each of its blocks is read from."""
    return [
        one_for_all(source, [f"{head}.{block}.linear" for block in range(num_layers)])
        for head in range(num_heads)
    ]


def read_blocks(source: Source, places: list[list[str]]) -> dict[str, torch.Tensor]:
    """`block_weight` `[K, L, H, H]` and `block_bias` `[K, L, H]`."""
    return {
        f"block_{what}": torch.stack(
            [stacked(source, [f"{place}.{what}" for place in row]) for row in places]
        )
        for what in ("weight", "bias")
    }


def write(heads: DraftHeads, target: TargetModel) -> Files:
    refuse_kind(NAME, heads, ["medusa"])
    refuse_draft_vocabulary(NAME, heads)
    tensors = written_blocks(NAME, heads)
    for head, rows in enumerate(full_output(NAME, heads, target)):
        tensors[f"{head}.{heads.config.num_layers}.weight"] = rows
    config = {
        "base_model_name_or_path": target.name,
        "medusa_num_heads": heads.num_draft_heads,
        "medusa_num_layers": heads.config.num_layers,
        # What vLLM needs on top to read this layout; without the last it drops the biases.
        "hidden_size": heads.hidden_size,
        "vocab_size": heads.vocab_size,
        "medusa_fc_bias": True,
    }
    return Files("medusa_lm_head.safetensors", tensors, config)


def written_blocks(layout: str, heads: DraftHeads) -> dict[str, torch.Tensor]:
    """Blocks by Medusa's names; several blocks of a head must be equal, its program has one."""
    stored = heads.state_dict()
    weights, biases = stored["block_weight"], stored["block_bias"]
    refuse_own_blocks(layout, [list(head) for head in weights])
    refuse_own_blocks(layout, [list(head) for head in biases])
    tensors = {}
    for head in range(heads.num_draft_heads):
        for block in range(heads.config.num_layers):
            tensors[f"{head}.{block}.linear.weight"] = weights[head, block]
            tensors[f"{head}.{block}.linear.bias"] = biases[head, block]
    return tensors


LAYOUT = Layout(NAME, "0.1.weight", num_draft_heads, read, write)
