"""Features: what the target sees and says at every position of the training rows.

Knows: one teacher-forced pass of the target over given rows. Does not know: heads, losses,
splits, how shards are read again (`shards.py`).

Dimension key: B batch · S row length · H hidden size · N tokens of all rows · V vocabulary ·
C teacher's best tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from entmtp.errors import EntmtpError
from entmtp.target.masks import causal_among
from entmtp.train.rows import Row
from entmtp.train.shards import list_rows, next_number, write_shard

if TYPE_CHECKING:
    from entmtp.target import TargetModel


@dataclass(frozen=True)
class FeatureConfig:
    """How features are extracted."""

    max_length: int = 1024
    """Rows are cut to this many tokens."""
    batch_tokens: int = 3072
    """Padded tokens of one forward."""
    rows_per_shard: int = 256
    num_teacher_tokens: int = 16
    """The target's best next tokens that are kept at each position."""


def extract_features(
    target: TargetModel,
    rows: Iterable[Row],
    folder: Path,
    config: FeatureConfig,
    progress: Callable[[int], None] | None = None,
) -> set[str]:
    """Bring the features of `rows` into `folder`, skipping those that are there; their keys.

    Rows without a label for any head (fewer than two answer tokens) are left out. No more rows
    than one shard holds are in memory at a time.

    Args:
        progress: called with the number of tokens just done.

    Raises:
        ArtefactError: the folder holds features of another model or of other settings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    there = {ref.key for ref in list_rows(folder, target.fingerprint, made_with(target, config))}
    wanted: set[str] = set()
    pending: list[Row] = []
    for whole in rows:
        row = whole.cut(max_row_length(target, config))
        if not row.is_useful or row.key in wanted:
            continue
        wanted.add(row.key)
        if row.key not in there:
            pending.append(row)
        if len(pending) == config.rows_per_shard:
            _extract_shard(target, pending, folder, config, progress)
            pending = []
    if pending:
        _extract_shard(target, pending, folder, config, progress)
    return wanted


def max_row_length(target: TargetModel, config: FeatureConfig) -> int:
    """Rows are cut to this many tokens: no position of a row may be beyond the context."""
    return min(config.max_length, target.max_length)


def made_with(target: TargetModel, config: FeatureConfig) -> str:
    """The settings that features depend on, in words."""
    dtype = str(target.dtype).removeprefix("torch.")
    return (
        f"{dtype}, rows of {max_row_length(target, config)}, {config.num_teacher_tokens} teachers"
    )


def _extract_shard(
    target: TargetModel,
    rows: list[Row],
    folder: Path,
    config: FeatureConfig,
    progress: Callable[[int], None] | None,
) -> None:
    parts: dict[int, dict[str, torch.Tensor]] = {}
    for batch in _batches(rows, config.batch_tokens):
        parts |= zip(batch, forward_rows(target, [rows[i] for i in batch], config), strict=True)
        if progress is not None:
            progress(sum(rows[i].length for i in batch))
    names = list(parts[0])
    tensors = {n: torch.cat([parts[i][n] for i in range(len(rows))]) for n in names}
    made_by = {"fingerprint": target.fingerprint, "made_with": made_with(target, config)}
    write_shard(folder, next_number(folder), rows, tensors, made_by)


def _batches(rows: list[Row], batch_tokens: int) -> Iterator[list[int]]:
    """Rows of similar length together, at most `batch_tokens` tokens with their padding."""
    batch: list[int] = []
    for index in sorted(range(len(rows)), key=lambda i: rows[i].length):
        if batch and rows[index].length * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


@torch.inference_mode()
def forward_rows(
    target: TargetModel, rows: list[Row], config: FeatureConfig
) -> list[dict[str, torch.Tensor]]:
    """One pass over a batch of rows; the per-token tensors of each, as a shard holds them."""
    sequences = [torch.tensor(r.prompt_ids + r.answer_ids) for r in rows]
    padded = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    batch, length = padded.shape
    among = causal_among(batch, length, target.device)
    positions = torch.arange(length, device=target.device).expand(batch, length)
    cache = target.new_cache(batch, length)
    hidden = target.forward(padded.to(target.device), positions, among, cache)
    return [
        _row_tensors(target, row, ids, hidden[index], config.num_teacher_tokens)
        for index, (row, ids) in enumerate(zip(rows, sequences, strict=True))
    ]


def _row_tensors(
    target: TargetModel, row: Row, ids: torch.Tensor, hidden: torch.Tensor, count: int
) -> dict[str, torch.Tensor]:
    states = hidden[: len(ids)]
    kept = states.to("cpu", torch.float16)
    if not bool(kept.isfinite().all()):
        raise EntmtpError(
            f"row {row.id}: the model's hidden states are not finite in 16 bits; heads cannot be"
            " trained on them. Try --dtype float32, or another model"
        )
    is_answer = torch.tensor(row.is_answer())
    labelled = is_answer[1:].nonzero().flatten()  # the places in front of answer tokens
    teacher_ids = torch.zeros(len(ids), count, dtype=torch.int32)
    teacher_probs = torch.zeros(len(ids), count, dtype=torch.float16)
    best_probs, best_ids = best_tokens(target, states[labelled.to(states.device)], count)
    filled = best_ids.shape[1]  # a vocabulary may be smaller than `count`
    teacher_ids[labelled, :filled] = best_ids.to("cpu", torch.int32)
    teacher_probs[labelled, :filled] = best_probs.to("cpu", torch.float16)
    return {
        "ids": ids.to(torch.int32),
        "is_answer": is_answer.to(torch.uint8),
        "hidden": kept,
        "teacher_ids": teacher_ids,
        "teacher_probs": teacher_probs,
    }


def best_tokens(
    target: TargetModel, states: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and ids `[N, C]` of the target's best next tokens after states `[N, H]`."""
    probs, ids = [], []
    for chunk in states.split(256):
        top = target.logits(chunk).log_softmax(-1).topk(min(count, target.vocab_size), dim=-1)
        probs.append(top.values.exp())
        ids.append(top.indices)
    return torch.cat(probs), torch.cat(ids)
