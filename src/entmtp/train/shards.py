"""Feature shards on disk: written whole, listed and read row by row.

Knows: the format. Does not know: models, heads, splits.

A shard `features-<number>.safetensors` holds R rows laid end to end. For every token: `ids`,
`hidden` (the target's state after it; the last token of a row may hold zeros), `teacher_ids` and
`teacher_probs` (the target's best tokens for the place behind it, all zero where that place is not
an assistant token), and `is_answer` (whether it is an assistant token; without this tensor, all
behind the prompt are). For every row: `row_start`, `row_length`, `prompt_length`. The metadata:
`rows` lists `id`, `kind` and `temperature` of each row; `schema_version`, the target's
`fingerprint` and `made_with` (the settings of the pass) are checked where they are present.

Dimension key: S row length · H hidden size · N tokens of all rows · C teacher's best tokens.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from entmtp.data.strict_json import number, parse_json
from entmtp.data.whole import whole
from entmtp.errors import ArtefactError
from entmtp.train.rows import Row, content_key, prompt_key

SCHEMA_VERSION = "1"
SHARD_PATTERN = "features-*.safetensors"
MAX_OPEN_SHARDS = 32
"""Shards that a reader keeps mapped: its memory does not grow with the number of rows."""


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
    num_answer: int
    """Assistant tokens."""
    temperature: float = 0.0
    """The answer was drawn at; 0 for greedy ones."""


class FeatureRow(NamedTuple):
    """One row's features."""

    ids: torch.Tensor  # [S] long
    is_answer: torch.Tensor  # [S] bool
    hidden: torch.Tensor  # [S, H]
    teacher_ids: torch.Tensor  # [S, C] long
    teacher_probs: torch.Tensor  # [S, C]


def write_shard(
    folder: Path,
    number: int,
    rows: Sequence[Row],
    tensors: Mapping[str, torch.Tensor],
    made_by: Mapping[str, str],
) -> Path:
    """Write one shard, whole or not at all.

    Args:
        tensors: of every token, as `FeatureRow` has them.
        made_by: `fingerprint` and `made_with`.
    """
    lengths = torch.tensor([row.length for row in rows])
    placed = {
        **{name: value.contiguous() for name, value in tensors.items()},
        "row_start": lengths.cumsum(0) - lengths,
        "row_length": lengths,
        "prompt_length": torch.tensor([len(row.prompt_ids) for row in rows]),
    }
    names = [{"id": r.id, "kind": r.kind, "temperature": r.temperature} for r in rows]
    path = folder / f"features-{number:05d}.safetensors"
    content = {"schema_version": SCHEMA_VERSION, "rows": json.dumps(names), **made_by}
    with whole(path) as half:
        save_file(placed, half, content)
    return path


def next_number(folder: Path) -> int:
    """The first shard number above all that are there."""
    return 1 + max((int(p.stem.split("-")[1]) for p in folder.glob(SHARD_PATTERN)), default=-1)


def list_rows(
    folder: Path, fingerprint: str | None = None, made_with: str | None = None
) -> list[RowRef]:
    """All rows of all shards of a folder, in shard order; the tokens of one shard at a time.

    Raises:
        ArtefactError: a shard is broken, or of another target or other settings than asked for.
    """
    wanted = {"fingerprint": fingerprint, "made_with": made_with}
    return [ref for path in shard_paths(folder) for ref in _list_shard(path, wanted)]


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob(SHARD_PATTERN))


def shard_made_with(path: Path) -> str:
    """The settings that a shard says it was made with."""
    return _metadata(path).get("made_with", "unknown")


def discard_stale(folder: Path, fingerprint: str, made_with: str) -> None:
    """Remove the shards of another target or of other settings."""
    wanted = {"fingerprint": fingerprint, "made_with": made_with}
    for path in shard_paths(folder):
        metadata = _metadata(path)
        if any(metadata.get(name, value) != value for name, value in wanted.items()):
            path.unlink()


def _metadata(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as shard:
            return shard.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise ArtefactError(f"{path} is broken ({error}); delete it and run again") from error


def _list_shard(path: Path, wanted: Mapping[str, str | None]) -> list[RowRef]:
    try:
        with safe_open(path, "pt") as shard:
            metadata = shard.metadata() or {}
            _check_made_by(path, metadata, wanted)
            names = parse_json(metadata["rows"])
            ids = shard.get_tensor("ids")
            starts, lengths, prompts = (
                shard.get_tensor(name).tolist()
                for name in ("row_start", "row_length", "prompt_length")
            )
            # A shard is no dict, and cannot be asked without its keys.
            has_mask = "is_answer" in shard.keys()  # noqa: SIM118
            mask = shard.get_tensor("is_answer").bool() if has_mask else torch.ones_like(ids).bool()
        refs = []
        for name, start, length, num_prompt in zip(names, starts, lengths, prompts, strict=True):
            row = slice(start, start + length)
            refs.append(_ref(name, ids[row].tolist(), mask[row][num_prompt:].tolist(), path, start))
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ArtefactError(f"{path} is broken ({error}); delete it and run again") from error
    return refs


def _check_made_by(
    path: Path, metadata: Mapping[str, str], wanted: Mapping[str, str | None]
) -> None:
    version = metadata.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise ArtefactError(
            f"{path} has schema version {version}, this program reads {SCHEMA_VERSION}; delete it"
            " and run again, or use a matching release"
        )
    for name, word in (("fingerprint", "the model"), ("made_with", "the settings")):
        found = metadata.get(name, wanted[name])
        if wanted[name] is not None and found != wanted[name]:
            raise ArtefactError(
                f"{path} was made with {word} {found}, this run has {wanted[name]}; pass --restart"
                " to make the features anew, or use another work folder"
            )


def _ref(
    name: dict[str, Any], ids: list[int], is_said: list[bool], path: Path, start: int
) -> RowRef:
    num_prompt = len(ids) - len(is_said)
    return RowRef(
        key=content_key(ids[:num_prompt], ids[num_prompt:], is_said),
        prompt_key=prompt_key(ids[:num_prompt]),
        kind=str(name.get("kind", "")),
        num_prompt=num_prompt,
        length=len(ids),
        shard=path,
        start=start,
        num_answer=sum(is_said),
        temperature=number(name.get("temperature", 0.0)),
    )


class FeatureReader:
    """Reads rows out of shards; a few of these stay open (memory mapped)."""

    def __init__(self) -> None:
        self._open: OrderedDict[Path, Any] = OrderedDict()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def read(self, ref: RowRef) -> FeatureRow:
        shard = self._shard(ref.shard)
        span = slice(ref.start, ref.start + ref.length)
        return FeatureRow(
            ids=shard.get_slice("ids")[span].long(),
            is_answer=self._is_answer(shard, ref, span),
            hidden=shard.get_slice("hidden")[span],
            teacher_ids=shard.get_slice("teacher_ids")[span].long(),
            teacher_probs=shard.get_slice("teacher_probs")[span],
        )

    def _shard(self, path: Path) -> Any:
        shard = self._open.pop(path, None) or safe_open(path, "pt")
        self._open[path] = shard
        if len(self._open) > MAX_OPEN_SHARDS:
            self._open.popitem(last=False)
        return shard

    @staticmethod
    def _is_answer(shard: Any, ref: RowRef, span: slice) -> torch.Tensor:
        if ref.num_answer == ref.length - ref.num_prompt:
            return torch.arange(ref.length) >= ref.num_prompt
        is_answer: torch.Tensor = shard.get_slice("is_answer")[span].bool()
        return is_answer


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
        prompt = row.ids[~row.is_answer]
        totals.index_add_(0, prompt, torch.full(prompt.shape, prompt_weight).double())
    return totals
