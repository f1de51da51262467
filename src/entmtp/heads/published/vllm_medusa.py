"""Medusa as vLLM up to 0.32 stores it, with or without a draft vocabulary.

Knows: the names `blocks.{head}.layers.{block}.*`, `lm_heads.{head}.weight` or `lm_head.weight`, and
`token_map` (PEERS §6.2). Does not know: files.

vLLM takes the rows of a full output layer that the map names, or an output layer that has those
rows alone; both are read. Biases are there only if `medusa_fc_bias` says so.
"""

from __future__ import annotations

import torch

from entmtp.errors import ArtefactError, HeadsError
from entmtp.heads.base import DraftHeads, HeadsConfig
from entmtp.heads.published.layout import (
    Files,
    Layout,
    Reading,
    count,
    demand,
    full_output,
    hidden_size,
    note,
    output_ids,
    refuse_kind,
    say_if_other,
    stacked,
    weight,
    without_prefix,
)
from entmtp.heads.published.source import Source
from entmtp.target.model import TargetModel

NAME = "vllm"
_PREFIXES = ("medusa_heads.",)
_BLOCK = r"blocks\.(\d+)\.layers\.(\d+)\.(?:weight|bias)"
_SHARED = ("lm_head.weight", "lm_heads.0.weight")


def num_draft_heads(source: Source) -> int:
    return count(without_prefix(source, _PREFIXES), _BLOCK)


def read(source: Source, target: TargetModel) -> Reading:
    source = without_prefix(source, _PREFIXES)
    heads, layers = range(count(source, _BLOCK)), count(source, _BLOCK, group=2)
    hidden = hidden_size(source, "blocks.0.layers.0.weight", target)
    stems = [[f"blocks.{head}.layers.{block}" for block in range(layers)] for head in heads]
    has_bias = any(name.endswith(".bias") for name in source.shapes)
    outputs = _outputs(source, len(heads))
    ids = _draft_ids(source, outputs[0], target)
    num_rows = source.shapes.get(outputs[0], (0,))[0]
    demand(
        source,
        {
            **{f"{stem}.weight": (hidden, hidden) for row in stems for stem in row},
            **{f"{stem}.bias": (hidden,) for row in stems for stem in row if has_bias},
            **dict.fromkeys(outputs, (num_rows, hidden)),
        },
        ignored=["token_map"],
    )
    _say_counts(source, len(heads), layers)
    weights = torch.stack([stacked(source, [f"{s}.weight" for s in row]) for row in stems])
    biases = weights.new_zeros(len(heads), layers, hidden)
    if has_bias:
        biases = torch.stack([stacked(source, [f"{s}.bias" for s in row]) for row in stems])
    tensors = {"block_weight": weights, "block_bias": biases}
    if ids is not None:
        tensors["draft_ids"] = ids
    num_ids = target.vocab_size if ids is None else len(ids)
    rows = [_chosen(weight(source, name), num_ids, ids) for name in outputs]
    is_target = len(rows) == 1 and _is_the_targets(rows[0], ids, target)
    if not is_target:
        tensors["output_weight"] = torch.stack(rows * (len(heads) if len(rows) == 1 else 1))
    output = "target" if is_target else "own"
    config = HeadsConfig(
        "medusa", hidden, target.vocab_size, len(heads), layers, num_ids, output=output
    )
    return Reading(config, tensors)


def _outputs(source: Source, num_heads: int) -> list[str]:
    """Names of the output layers: one for each head, or the one that all share."""
    if source.config.get("original_lm_head") or "lm_head.weight" in source.shapes:
        return [next((name for name in _SHARED if name in source.shapes), _SHARED[0])]
    return [f"lm_heads.{head}.weight" for head in range(num_heads)]


def _draft_ids(source: Source, output: str, target: TargetModel) -> torch.Tensor | None:
    """The map from output rows to target ids; None where there is a row for each id.

    Raises:
        HeadsError: the rows fit neither the map nor the vocabulary.
        ArtefactError: the map is no list of different target ids.
    """
    if "token_map" not in source.shapes:
        return output_ids(source, output, target)
    ids = source.tensor("token_map")
    is_integer = not (ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool)
    if ids.ndim != 1 or not ids.numel() or not is_integer:
        raise ArtefactError(f"{source.where}: token_map is no list of ids ({ids.dtype})")
    ids = ids.long()
    if int(ids.min()) < 0 or int(ids.max()) >= target.vocab_size or len(ids.unique()) < len(ids):
        raise ArtefactError(
            f"{source.where}: token_map reaches from {int(ids.min())} to {int(ids.max())} with"
            f" {len(ids.unique())} different ids in {len(ids)} rows; expected different ids below"
            f" {target.vocab_size}"
        )
    rows = source.shapes.get(output, (len(ids),))[0]
    if rows not in (len(ids), target.vocab_size):
        raise HeadsError(
            f"heads in {source.where} have {rows} output rows, their token_map has {len(ids)} ids"
            f" and the model {target.name} {target.vocab_size} tokens; use heads trained for it"
        )
    is_whole = torch.equal(ids, torch.arange(target.vocab_size))
    return None if is_whole else ids


def _chosen(rows: torch.Tensor, num_ids: int, ids: torch.Tensor | None) -> torch.Tensor:
    """The rows of the draft vocabulary, out of a whole output layer or as they are."""
    return rows if ids is None or len(rows) == num_ids else rows[ids]


def _is_the_targets(rows: torch.Tensor, ids: torch.Tensor | None, target: TargetModel) -> bool:
    """Whether a shared output layer is the target's own, which need not be kept twice."""
    theirs = target.output_weight.detach().cpu()
    if target.output_bias is not None:
        return False
    theirs = theirs if ids is None else theirs[ids]
    # Both rounded to 16 bits: the same weights in another number format are the same weights.
    return torch.equal(rows.to(torch.bfloat16), theirs.to(torch.bfloat16))


def _say_counts(source: Source, num_heads: int, num_layers: int) -> None:
    for key, found in (("num_heads", num_heads), ("num_hidden_layers", num_layers)):
        say_if_other(source, key, found)
        say_if_other(source, key.replace("num_", "medusa_num_").replace("hidden_", ""), found)


def write(heads: DraftHeads, target: TargetModel) -> Files:
    refuse_kind(NAME, heads, ["medusa"])
    stored = heads.state_dict()
    tensors = {}
    for head in range(heads.num_draft_heads):
        for block in range(heads.config.num_layers):
            stem = f"blocks.{head}.layers.{block}"
            tensors[f"{stem}.weight"] = stored["block_weight"][head, block]
            tensors[f"{stem}.bias"] = stored["block_bias"][head, block]
    is_shared = heads.config.output == "target"
    rows = full_output(NAME, heads, target)
    for head, output in enumerate(rows[:1] if is_shared else rows):
        tensors[f"lm_heads.{head}.weight"] = output
    if heads.draft_ids is not None:
        # Measured: benchmarks/results/vllm-medusa.json.
        note("vLLM 0.32.0 does not load heads with a draft vocabulary (token_map)")
        tensors["token_map"] = heads.draft_ids
    config = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": heads.hidden_size,
        "vocab_size": heads.vocab_size,
        "truncated_vocab_size": heads.config.draft_vocab_size,
        "num_heads": heads.num_draft_heads,
        "num_hidden_layers": heads.config.num_layers,
        "original_lm_head": is_shared,
        "medusa_fc_bias": True,
    }
    return Files("model.safetensors", tensors, config)


LAYOUT = Layout(NAME, "blocks.0.layers.0.weight", num_draft_heads, read, write)
