"""Feature shards on disk: written whole, listed and read row by row.

Knows: the format. Does not know: models, heads, splits.

A shard `features-<number>.safetensors` holds R rows laid end to end. For every token: `ids`,
`hidden` (the target's state after it; the last token of a row may hold zeros), and
`teacher_ids`, `teacher_probs`: the target's best tokens for the place behind it, all zero where
that place is not an assistant token. For every row: `row_start`, `row_length`, `prompt_length`.
The metadata: `rows` lists `id`, `kind` and `temperature` of each row; `schema_version` and the
target's `fingerprint` are checked where they are present.

Dimension key: S row length · H hidden size · N tokens of all rows · C teacher's best tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from entmtp.errors import ArtefactError
from entmtp.train.rows import Row, content_key, prompt_key

SCHEMA_VERSION = "1"
SHARD_PATTERN = "features-*.safetensors"


class RowRef(NamedTuple):
    """Where one row lies."""

    key: str
    """Names the row by its content."""
    prompt_key: str
    """Names its prompt by its content: rows of one prompt stay in one split."""
    kind: str
    num_prompt: int
    length: int
    shard: Path
    start: int
    temperature: float = 0.0
    """The answer was drawn at; 0 for greedy ones."""

    @property
    def num_answer(self) -> int:
        return self.length - self.num_prompt


class FeatureRow(NamedTuple):
    """One row's features."""

    ids: torch.Tensor  # [S] long
    num_prompt: int
    hidden: torch.Tensor  # [S, H]
    teacher_ids: torch.Tensor  # [S, C] long
    teacher_probs: torch.Tensor  # [S, C]


def write_shard(
    folder: Path,
    number: int,
    rows: Sequence[Row],
    tensors: Mapping[str, torch.Tensor],
    fingerprint: str,
) -> Path:
    """Write one shard, whole or not at all."""
    lengths = torch.tensor([row.length for row in rows])
    placed = {
        **{name: value.contiguous() for name, value in tensors.items()},
        "row_start": lengths.cumsum(0) - lengths,
        "row_length": lengths,
        "prompt_length": torch.tensor([len(row.prompt_ids) for row in rows]),
    }
    names = [{"id": r.id, "kind": r.kind, "temperature": r.temperature} for r in rows]
    path = folder / f"features-{number:05d}.safetensors"
    half = folder / f".{path.name}.{os.getpid()}"
    metadata = {
        "schema_version": SCHEMA_VERSION,
        "rows": json.dumps(names),
        "fingerprint": fingerprint,
    }
    save_file(placed, half, metadata)
    half.replace(path)
    return path


def next_number(folder: Path) -> int:
    """The first shard number above all that are there."""
    return 1 + max((int(p.stem.split("-")[1]) for p in folder.glob(SHARD_PATTERN)), default=-1)


def list_rows(folder: Path, fingerprint: str | None = None) -> list[RowRef]:
    """All rows of all shards of a folder, in shard order.

    Raises:
        ArtefactError: a shard is broken or of another target.
    """
    refs: list[RowRef] = []
    for path in sorted(folder.glob(SHARD_PATTERN)):
        try:
            with safe_open(path, "pt") as shard:
                metadata = shard.metadata() or {}
                names = json.loads(metadata["rows"])
                ids = shard.get_tensor("ids")
                starts, lengths, prompts = (
                    shard.get_tensor(name).tolist()
                    for name in ("row_start", "row_length", "prompt_length")
                )
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise ArtefactError(f"{path} is broken ({error}); delete it and run again") from error
        _check_made_with(path, metadata, fingerprint)
        for name, start, length, num_prompt in zip(names, starts, lengths, prompts, strict=True):
            refs.append(_ref(name, ids[start : start + length].tolist(), num_prompt, path, start))
    return refs


def _check_made_with(path: Path, metadata: Mapping[str, str], fingerprint: str | None) -> None:
    version = metadata.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ArtefactError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}; delete it"
            " and run again, or use a matching release"
        )
    made_with = metadata.get("fingerprint", fingerprint)
    if fingerprint is not None and made_with != fingerprint:
        raise ArtefactError(
            f"{path} was made with the model {made_with}, this is {fingerprint}; use another"
            " work folder"
        )


def _ref(name: dict[str, Any], ids: list[int], num_prompt: int, path: Path, start: int) -> RowRef:
    return RowRef(
        key=content_key(ids[:num_prompt], ids[num_prompt:]),
        prompt_key=prompt_key(ids[:num_prompt]),
        kind=str(name.get("kind", "")),
        num_prompt=num_prompt,
        length=len(ids),
        shard=path,
        start=start,
        temperature=float(name.get("temperature", 0.0)),
    )


class FeatureReader:
    """Reads rows out of shards, which it keeps open (memory mapped)."""

    def __init__(self) -> None:
        self._open: dict[Path, Any] = {}

    def read(self, ref: RowRef) -> FeatureRow:
        shard = self._open.get(ref.shard)
        if shard is None:
            shard = self._open[ref.shard] = safe_open(ref.shard, "pt")
        span = slice(ref.start, ref.start + ref.length)
        return FeatureRow(
            ids=shard.get_slice("ids")[span].long(),
            num_prompt=ref.num_prompt,
            hidden=shard.get_slice("hidden")[span],
            teacher_ids=shard.get_slice("teacher_ids")[span].long(),
            teacher_probs=shard.get_slice("teacher_probs")[span],
        )


def teacher_mass(
    refs: Iterable[RowRef], vocab_size: int, prompt_weight: float = 0.0
) -> torch.Tensor:
    """How often the target would write each id `[V]`: its probabilities, summed over the rows.

    Smoother than counting the tokens written: every position speaks for 16 ids.

    Args:
        prompt_weight: what a token of a prompt counts; answers take up words of their prompts.
    """
    reader = FeatureReader()
    totals = torch.zeros(vocab_size, dtype=torch.float64)
    for ref in refs:
        row = reader.read(ref)
        totals.index_add_(0, row.teacher_ids.flatten(), row.teacher_probs.flatten().double())
        prompt = row.ids[: row.num_prompt]
        totals.index_add_(0, prompt, torch.full(prompt.shape, prompt_weight).double())
    return totals
