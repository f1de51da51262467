"""Medusa's second form, which TGI serves: residual blocks only, the model's own output layer.

Knows: the names `{head}.{block}.linear.*` without output weights (METHOD §3). Does not know: files.
"""

from __future__ import annotations

from entmtp.heads.base import DraftHeads, HeadsConfig
from entmtp.heads.published.layout import (
    Files,
    Layout,
    Reading,
    count,
    demand,
    hidden_size,
    note,
    refuse,
    refuse_draft_vocabulary,
    refuse_kind,
    say_if_other,
    without_prefix,
)
from entmtp.heads.published.medusa_v1 import PREFIXES, block_places, read_blocks, written_blocks
from entmtp.heads.published.source import Source
from entmtp.heads.registry import MAX_COUNT
from entmtp.target.model import TargetModel

NAME = "medusa-v2"
_HEAD = r"(\d+)\.(\d+)\.linear\.(?:weight|bias)"


def num_draft_heads(source: Source) -> int:
    return count(without_prefix(source, PREFIXES), _HEAD)


def read(source: Source, target: TargetModel) -> Reading:
    source = without_prefix(source, PREFIXES)
    num_heads, layers = count(source, _HEAD), count(source, _HEAD, group=2)
    said = source.number("medusa_num_layers")
    if layers == 1 and said is not None and 1 < said <= MAX_COUNT:
        layers = said  # one block used several times, stored once
    hidden = hidden_size(source, "0.0.linear.weight", target)
    places = block_places(source, num_heads, layers)
    demand(
        source,
        {
            **{f"{place}.weight": (hidden, hidden) for row in places for place in row},
            **{f"{place}.bias": (hidden,) for row in places for place in row},
        },
    )
    say_if_other(source, "medusa_num_heads", num_heads)
    say_if_other(source, "medusa_num_layers", layers)
    if source.config and str(source.config.get("version")) != "2":
        note(
            f"{source.where} holds no output layers and config.json does not say version 2; the"
            " model's own output layer is used"
        )
    vocab = target.vocab_size
    config = HeadsConfig("medusa", hidden, vocab, num_heads, layers, vocab, output="target")
    return Reading(config, read_blocks(source, places))


def write(heads: DraftHeads, target: TargetModel) -> Files:
    refuse_kind(NAME, heads, ["medusa"])
    refuse_draft_vocabulary(NAME, heads)
    if heads.config.output != "target":
        raise refuse(
            NAME, "it shares the model's output layer, and they have output rows of theirs"
        )
    config = {
        "base_model_name_or_path": target.name,
        "medusa_num_heads": heads.num_draft_heads,
        "medusa_num_layers": heads.config.num_layers,
        "version": "2",
    }
    return Files("medusa_lm_head.safetensors", written_blocks(NAME, heads), config)


LAYOUT = Layout(NAME, "0.0.linear.weight", num_draft_heads, read, write)
