"""What every published layout has in common: how names become heads, and what to say if they don't.

Knows: sources of named tensors, sizes of a target. Does not know: any one layout.

Dimension key: K draft heads · L residual blocks · H hidden size · V vocabulary · W output rows.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from entmtp.errors import ArtefactError, HeadsError
from entmtp.heads.base import DraftHeads, HeadsConfig
from entmtp.heads.fit import check_size, check_tensors
from entmtp.heads.published.source import Source
from entmtp.heads.registry import MAX_COUNT
from entmtp.target.model import TargetModel

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")


class Reading(NamedTuple):
    """Heads as read: their sizes, and their tensors by our names, in the numbers of the file."""

    config: HeadsConfig
    tensors: dict[str, torch.Tensor]


class Files(NamedTuple):
    """Heads as written: tensors of one file by the layout's names, and its `config.json`."""

    weights_name: str
    tensors: dict[str, torch.Tensor]
    config: dict[str, Any]


@dataclass(frozen=True)
class Layout:
    """One way in which other programs store heads."""

    name: str
    example: str
    """A name of a tensor that every file of this layout has."""
    num_draft_heads: Callable[[Source], int]
    """How many heads the names show; 0 for names of another layout."""
    read: Callable[[Source, TargetModel], Reading]
    """Raises HeadsError for heads of other sizes, ArtefactError for wrong tensors."""
    write: Callable[[DraftHeads, TargetModel], Files]
    """Raises HeadsError for heads that the layout cannot hold."""


def is_whole_model(names: Iterable[str]) -> bool:
    """Whether a target model's own weights are among the names."""
    # Hydra++ carries the embedding of its prefix layer along.
    return any(name.endswith(_EMBEDDINGS) and not name.startswith("prefix_") for name in names)


def without_prefix(source: Source, prefixes: Sequence[str]) -> Source:
    """The heads' tensors by their short names.

    In a checkpoint of a whole model they stand behind a prefix and the rest is the model's own.
    """
    short = {n: n.removeprefix(p) for p in prefixes for n in source.shapes if n.startswith(p)}
    if not short:
        return source
    if not is_whole_model(source.shapes):
        short = {name: short.get(name, name) for name in source.shapes}
    return source.renamed(short)


def count(source: Source, pattern: str, group: int = 1) -> int:
    """One more than the largest number in the names that match; 0 where none does.

    Raises:
        HeadsError: the number is beyond anything that heads have.
    """
    matches = [m for name in source.shapes if (m := re.fullmatch(pattern, name))]
    for match in matches:
        if len(match[group]) > 3 or int(match[group]) >= MAX_COUNT:
            raise HeadsError(
                f"{source.where} has a tensor {match[0]}; heads and blocks are numbered from 0 and"
                f" at most {MAX_COUNT} are read"
            )
    return max((int(match[group]) + 1 for match in matches), default=0)


def say_if_other(source: Source, key: str, found: int) -> None:
    """Published configurations may be wrong; the weights decide, and that is said."""
    said = source.number(key)
    if said is not None and said != found:
        note(
            f"{source.where}: config.json says {key} {said}, the weights hold {found}; these count"
        )


def note(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def demand(
    source: Source, expected: Mapping[str, tuple[int, ...]], ignored: Iterable[str] = ()
) -> None:
    """Check that exactly the expected tensors are there, in their shapes.

    Raises:
        ArtefactError: names every tensor that is missing or unexpected, or one of another shape.
    """
    unused = set(ignored)
    shapes = {name: shape for name, shape in source.shapes.items() if name not in unused}
    check_tensors(source.where, shapes, expected, "of its layout")


def hidden_size(source: Source, name: str, target: TargetModel) -> int:
    """The heads' hidden size, from the rows of a block's weight.

    Raises:
        HeadsError: the target has another.
    """
    shape = source.shapes.get(name, ())
    if shape:
        check_size(source.where, "hidden size", shape[0], target.hidden_size, target)
    return target.hidden_size


def output_ids(source: Source, name: str, target: TargetModel) -> torch.Tensor | None:
    """Target ids of an output layer without a map: None if there is a row for each.

    Rows of a target beyond its tokenizer's ids are padding, and heads need not have them.

    Raises:
        HeadsError: the rows are as many as neither the vocabulary nor the tokenizer has.
    """
    rows = source.shapes.get(name, (target.vocab_size,))[0]
    if rows == target.vocab_size:
        return None
    if target.tokenizer is not None and rows == len(target.tokenizer) < target.vocab_size:
        return torch.arange(rows)
    raise HeadsError(
        f"heads in {source.where} are for vocabulary {rows}, the model {target.name} has"
        f" {target.vocab_size}, and there is no map from one to the other (token_map); use heads"
        " trained for this model"
    )


def one_for_all(source: Source, stems: Sequence[str]) -> list[str]:
    """Where each of several blocks is read from.

    Medusa's and Hydra's programs make the blocks of a head one module used several times. Files
    hold equal copies, or only one of them.
    """
    stored = [stem for stem in stems if f"{stem}.weight" in source.shapes]
    return stored * len(stems) if len(stored) == 1 else list(stems)


def weight(source: Source, name: str) -> torch.Tensor:
    """A tensor of real numbers; said if some are none."""
    value = source.tensor(name)
    if not value.is_floating_point():
        raise ArtefactError(
            f"{source.where}: {name} holds {value.dtype}, expected floating-point numbers"
        )
    if value.element_size() == 1:
        value = value.float()
    if not bool(torch.isfinite(value).all()):
        note(
            f"{source.where}: {name} holds NaN or infinite values; hardly any draft will be"
            " accepted"
        )
    return value


def stacked(source: Source, names: Iterable[str]) -> torch.Tensor:
    return torch.stack([weight(source, name) for name in names])


def refuse(layout: str, reason: str) -> HeadsError:
    """What to raise for heads that a layout cannot hold."""
    return HeadsError(f"{layout} cannot hold these heads: {reason}; use --to own or another layout")


def refuse_kind(layout: str, heads: DraftHeads, kinds: Sequence[str]) -> None:
    if heads.kind not in kinds:
        raise refuse(layout, f"they are {heads.kind}, it is for {' and '.join(kinds)}")


def refuse_draft_vocabulary(layout: str, heads: DraftHeads) -> None:
    if heads.draft_ids is not None:
        raise refuse(
            layout,
            f"their output layer has {heads.config.draft_vocab_size} of"
            f" {heads.vocab_size} tokens, and it has no map of ids",
        )


def refuse_own_blocks(layout: str, blocks: Sequence[Sequence[torch.Tensor]]) -> None:
    """`blocks`: per head, what its program would make one module of."""
    for head, same in enumerate(blocks):
        if any(not torch.equal(same[0], other) for other in same[1:]):
            raise refuse(
                layout,
                f"head {head} has {len(same)} different blocks where that program applies one"
                " several times",
            )


def full_output(layout: str, heads: DraftHeads, target: TargetModel) -> list[torch.Tensor]:
    """Each head's output weight `[W, H]`, in the heads' own numbers, whatever form it is kept in.

    Rows are the target's own, not less their mean as bound heads have them.
    """
    heads_range = range(heads.num_draft_heads)
    if heads.config.output == "own":
        return [heads.output_weight[head].detach() for head in heads_range]
    if target.output_bias is not None:
        raise refuse(layout, "their output rows are the model's, whose output layer has a bias")
    dtype = next(heads.parameters()).dtype
    rows = target.output_weight.detach()
    rows = (rows if heads.draft_ids is None else rows[heads.draft_ids.to(rows.device)]).cpu()
    if heads.config.output == "target":
        return [rows.to(dtype) for _ in heads_range]
    projection: Any = heads.projection
    return [(rows.float() @ projection[head].detach().float()).to(dtype) for head in heads_range]
