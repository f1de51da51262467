"""Hydra and Hydra++ as their authors publish them (grounded MLP heads, with or without a prefix).

Knows: the names of `hydra_lm_head.pt` (METHOD §2.1): the prefix layer's misspelt name, places that
dropout takes up in Hydra++, tensors that its program stores and never uses. Does not know: files.

A first block is `res_connection(x) + SiLU(linear(x))`; the others are one module used L - 1 times.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from entmtp.errors import HeadsError
from entmtp.heads.base import DraftHeads, HeadsConfig, PrefixShape
from entmtp.heads.published.layout import (
    Files,
    Layout,
    Reading,
    count,
    demand,
    full_output,
    hidden_size,
    note,
    one_for_all,
    output_ids,
    refuse,
    refuse_draft_vocabulary,
    refuse_kind,
    refuse_own_blocks,
    say_if_other,
    stacked,
    weight,
    without_prefix,
)
from entmtp.heads.published.source import Source
from entmtp.heads.registry import MAX_COUNT, prefix_shape
from entmtp.target.model import TargetModel

NAME = "hydra"
_PREFIXES = ("hydra_head.",)
_BLOCK = r"hydra_mlp\.(\d+)\.(\d+)\.(?:linear|res_connection)\.(?:weight|bias)"
_THEIRS, _OURS = "prefix_embeding_layer.", "prefix.body."
_UNUSED = (
    "input_embed_fn.weight",
    f"{_THEIRS}embed_tokens.weight",
    f"{_THEIRS}rotary_emb.inv_freq",
    f"{_THEIRS}layers.0.self_attn.rotary_emb.inv_freq",
)
_ARCHITECTURES = {"mlp": "hydra", "prefix-mlp": "hydra++"}


@dataclass(frozen=True)
class _Names:
    """Where things stand; with dropout in front of each, every second place is free."""

    is_prefixed: bool
    num_layers: int

    def block(self, head: int, block: int) -> str:
        place = 2 * block + 1 if self.is_prefixed else block
        return f"hydra_mlp.{head}.{place}.linear"

    def skip(self, head: int) -> str:
        return f"hydra_mlp.{head}.{int(self.is_prefixed)}.res_connection"

    def output(self, head: int) -> str:
        return f"hydra_lm_head.{head}{'.1' if self.is_prefixed else ''}"

    def rest(self, head: int) -> list[str]:
        return [self.block(head, block) for block in range(1, self.num_layers)]


def num_draft_heads(source: Source) -> int:
    return count(without_prefix(source, _PREFIXES), _BLOCK)


def read(source: Source, target: TargetModel) -> Reading:
    source = without_prefix(source, _PREFIXES)
    heads = range(count(source, _BLOCK))
    is_prefixed = any(name.startswith(_THEIRS) for name in source.shapes)
    _refuse_other_architectures(source)
    names = _Names(is_prefixed, _num_layers(source, is_prefixed))
    hidden = hidden_size(source, f"{names.block(0, 0)}.weight", target)
    ids = output_ids(source, f"{names.output(0)}.weight", target)
    shape = _prefix_shape(target) if is_prefixed else None
    num_rows = target.vocab_size if ids is None else len(ids)
    rest = [one_for_all(source, names.rest(head)) for head in heads]
    expected = dict(_linear_shapes(names, len(heads), rest, hidden, num_rows))
    if shape is not None:
        expected |= _prefix_shapes(hidden, shape)
    demand(source, expected, ignored=_UNUSED)
    say_if_other(source, "hydra_num_heads", len(heads))
    say_if_other(source, "hydra_num_layers", names.num_layers)
    _say_if_other_embedding(source, target)
    config = HeadsConfig(
        "hydra++" if is_prefixed else "hydra",
        hidden,
        target.vocab_size,
        len(heads),
        names.num_layers,
        num_rows,
        output="own",
        prefix=shape,
    )
    tensors = dict(_tensors(source, names, rest))
    if ids is not None:
        tensors["draft_ids"] = ids
    return Reading(config, tensors)


def _refuse_other_architectures(source: Source) -> None:
    said = source.config.get("hydra_head_arch")
    if said is not None and said not in list(_ARCHITECTURES):
        raise HeadsError(
            f"heads in {source.where} are of the Hydra architecture {said!r}; supported are"
            f" {' and '.join(_ARCHITECTURES)}"
        )
    has_skip = any(".res_connection." in name for name in source.shapes)
    if source.config.get("grounded_heads") is False or not has_skip:
        raise HeadsError(
            f"heads in {source.where} are ungrounded Hydra heads (they see no tokens of the path);"
            " grounded ones are supported, and Medusa heads for what sees no path"
        )


def _num_layers(source: Source, is_prefixed: bool) -> int:
    places = count(source, _BLOCK, group=2)
    found = max(1, places // 2 if is_prefixed else places)
    said = source.number("hydra_num_layers")
    if found == 2 and said is not None and 2 < said <= MAX_COUNT:
        return said  # one plain block used several times, stored once
    return found


def _linear_shapes(
    names: _Names, num_heads: int, rest: list[list[str]], hidden: int, num_rows: int
) -> Iterable[tuple[str, tuple[int, ...]]]:
    for head in range(num_heads):
        for stem in (names.block(head, 0), names.skip(head)):
            yield f"{stem}.weight", (hidden, (head + 2) * hidden)
            yield f"{stem}.bias", (hidden,)
        for stem in rest[head]:
            yield f"{stem}.weight", (hidden, hidden)
            yield f"{stem}.bias", (hidden,)
        yield f"{names.output(head)}.weight", (num_rows, hidden)
        yield f"{names.output(head)}.bias", (num_rows,)


def _prefix_shape(target: TargetModel) -> PrefixShape:
    """Hydra++ gives its prefix layer the target's own configuration.

    Raises:
        HeadsError: the target is no Llama-like model.
    """
    try:
        shape = prefix_shape(target)
    except AttributeError as error:
        raise HeadsError(
            f"Hydra++ heads have a layer like the model's own, and {target.name} is no Llama-like"
            f" model ({error}); use other heads"
        ) from None
    rope: Any = getattr(target.config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default":
        note(
            f"the model scales its rotary positions ({rope.get('rope_type')}), the heads' prefix"
            " layer does not; the output stays exact, but fewer drafts may be accepted"
        )
    return shape


def _prefix_shapes(hidden: int, shape: PrefixShape) -> dict[str, tuple[int, ...]]:
    wide, inner = shape.num_attention_heads * shape.head_dim, shape.intermediate_size
    narrow = shape.num_kv_heads * shape.head_dim
    layer = f"{_THEIRS}layers.0."
    return {
        f"{_THEIRS}norm.weight": (hidden,),
        f"{layer}input_layernorm.weight": (hidden,),
        f"{layer}post_attention_layernorm.weight": (hidden,),
        f"{layer}self_attn.q_proj.weight": (wide, hidden),
        f"{layer}self_attn.k_proj.weight": (narrow, hidden),
        f"{layer}self_attn.v_proj.weight": (narrow, hidden),
        f"{layer}self_attn.o_proj.weight": (hidden, wide),
        f"{layer}mlp.gate_proj.weight": (inner, hidden),
        f"{layer}mlp.up_proj.weight": (inner, hidden),
        f"{layer}mlp.down_proj.weight": (hidden, inner),
    }


def _say_if_other_embedding(source: Source, target: TargetModel) -> None:
    """The stored embedding is the target's in training: it tells heads of another model."""
    name, ours = "input_embed_fn.weight", target.embedding_weight.detach()
    if name not in source.shapes:
        return
    if source.shapes[name] == tuple(ours.shape):
        theirs = source.tensor(name)[:64].float()
        if torch.allclose(theirs, ours[:64].float().cpu(), rtol=0.02, atol=1e-3):
            return
    note(
        f"{source.where} carries an embedding that is not that of the model {target.name}; the"
        " output stays exact, but few drafts may be accepted"
    )


def _tensors(
    source: Source, names: _Names, rest: list[list[str]]
) -> Iterable[tuple[str, torch.Tensor]]:
    heads = range(len(rest))
    for what in ("weight", "bias"):
        for head in heads:
            stems = names.block(head, 0), names.skip(head)
            pair = [weight(source, f"{stem}.{what}") for stem in stems]
            yield f"first.{head}.linear.{what}", torch.cat(pair)
            for block, stem in enumerate(rest[head]):
                yield f"rest.{head}.{block}.linear.{what}", weight(source, f"{stem}.{what}")
        yield f"output_{what}", stacked(source, [f"{names.output(h)}.{what}" for h in heads])
    for name in source.shapes:
        if name.startswith(_THEIRS) and name not in _UNUSED:
            yield _OURS + name.removeprefix(_THEIRS), weight(source, name)


def write(heads: DraftHeads, target: TargetModel) -> Files:
    refuse_kind(NAME, heads, list(_ARCHITECTURES.values()))
    refuse_draft_vocabulary(NAME, heads)
    is_prefixed = heads.config.prefix is not None
    if is_prefixed and heads.config.prefix != _prefix_shape(target):
        raise refuse(NAME, "their prefix layer has other sizes than the model's layers")
    names = _Names(is_prefixed, heads.config.num_layers)
    tensors = dict(_written_heads(heads, names))
    biases = heads.output_bias.detach() if heads.config.output == "own" else None
    for head, rows in enumerate(full_output(NAME, heads, target)):
        tensors[f"{names.output(head)}.weight"] = rows
        tensors[f"{names.output(head)}.bias"] = (
            rows.new_zeros(len(rows)) if biases is None else biases[head]
        )
    for name, value in heads.state_dict().items():
        if name.startswith(_OURS):
            tensors[_THEIRS + name.removeprefix(_OURS)] = value
    arch = next(arch for arch, kind in _ARCHITECTURES.items() if kind == heads.kind)
    config = {
        "base_model_name_or_path": target.name,
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "hydra_head_arch": arch,
        "hydra_num_heads": heads.num_draft_heads,
        "hydra_num_layers": heads.config.num_layers,
    }
    # Hydra's program looks for this name alone.
    return Files("hydra_lm_head.pt", tensors, config)


def _written_heads(heads: DraftHeads, names: _Names) -> Iterable[tuple[str, torch.Tensor]]:
    stored, hidden = heads.state_dict(), heads.hidden_size
    all_heads = range(heads.num_draft_heads)
    for what in ("weight", "bias"):
        blocks = [
            [stored[f"rest.{head}.{block}.linear.{what}"] for block in range(names.num_layers - 1)]
            for head in all_heads
        ]
        refuse_own_blocks(NAME, blocks)
        for head in all_heads:
            first = stored[f"first.{head}.linear.{what}"]
            yield f"{names.block(head, 0)}.{what}", first[:hidden]
            yield f"{names.skip(head)}.{what}", first[hidden:]
            for stem, block in zip(names.rest(head), blocks[head], strict=True):
                yield f"{stem}.{what}", block


LAYOUT = Layout(NAME, "hydra_mlp.0.0.linear.weight", num_draft_heads, read, write)
