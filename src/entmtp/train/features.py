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

from entmtp.errors import BadInput
from entmtp.target.masks import causal_among
from entmtp.train.rows import Row, content_key
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
) -> int:
    """Bring the features of `rows` into `folder`, skipping rows that are there; how many are new.

    Rows without a label for any head (fewer than two answer tokens) are skipped.

    Args:
        progress: called with the number of tokens just done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen = {ref.key for ref in list_rows(folder, target.fingerprint)}
    pending: list[Row] = []
    num_new = 0
    for whole in rows:
        row = whole.cut(config.max_length)
        key = content_key(row.prompt_ids, row.answer_ids)
        if key in seen or len(row.answer_ids) < 2 or not row.prompt_ids:
            continue
        seen.add(key)
        pending.append(row)
        num_new += 1
        if len(pending) == config.rows_per_shard:
            _extract_shard(target, pending, folder, config, progress)
            pending = []
    if pending:
        _extract_shard(target, pending, folder, config, progress)
    return num_new


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
    write_shard(folder, next_number(folder), rows, tensors, target.fingerprint)


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
    for row, ids in zip(rows, sequences, strict=True):
        if int(ids.max()) >= target.vocab_size:
            raise BadInput(
                f"row {row.id} holds the id {int(ids.max())}, the vocabulary has"
                f" {target.vocab_size}; were the answers made by another model?"
            )
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
    first, last = len(row.prompt_ids) - 1, len(ids) - 1
    teacher_ids = torch.zeros(len(ids), count, dtype=torch.int32)
    teacher_probs = torch.zeros(len(ids), count, dtype=torch.float16)
    best_probs, best_ids = best_tokens(target, states[first:last], count)
    filled = best_ids.shape[1]  # a vocabulary may be smaller than `count`
    teacher_ids[first:last, :filled] = best_ids.to("cpu", torch.int32)
    teacher_probs[first:last, :filled] = best_probs.to("cpu", torch.float16)
    return {
        "ids": ids.to(torch.int32),
        "hidden": states.to("cpu", torch.float16),
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
