"""From feature rows to batches: the split, the order, the labels.

Knows: rows of features and where their assistant tokens are. Does not know: heads, losses.

Everything here is a pure function of the rows, the configuration and the seed, so a training
that stopped at any step goes on with the batch that would have come.

Labels: head k (0-based) at position t is trained on the token t + k + 2 of the same row, and
only where that is an assistant token. Its teacher is the target's distribution at t + k + 1.

Dimension key: B batch · S padded row length · H hidden size · N supervised positions ·
C teacher's best tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from entmtp.train.shards import FeatureReader, RowRef

POOL_ROWS = 512
"""Rows of similar length are looked for among this many shuffled ones."""


class Split(NamedTuple):
    """Rows to learn from and rows to judge by; no prompt is in both."""

    train: list[RowRef]
    validation: list[RowRef]


class Batch(NamedTuple):
    """Padded rows. Padding lies behind the row and carries no label."""

    ids: torch.Tensor  # [B, S] long
    hidden: torch.Tensor  # [B, S, H] float32
    has_label: torch.Tensor  # [B, S] bool: the next token is an assistant token of this row
    teacher_ids: torch.Tensor  # [B, S, C] long
    teacher_probs: torch.Tensor  # [B, S, C] float32


class Positions(NamedTuple):
    """Where one head is trained: places in the flattened `[B·S]` rows."""

    context: torch.Tensor  # [N] place t
    teacher: torch.Tensor  # [N] place t + head + 1, whose next token is the label


def split_rows(refs: Sequence[RowRef], fraction: float) -> Split:
    """Split by prompt: the hash of a prompt decides, so more data never moves a row across."""
    unique = {ref.key: ref for ref in refs}
    ordered = sorted(unique.values(), key=lambda ref: ref.key)
    held = [ref for ref in ordered if is_held_out(ref.prompt_key, fraction)]
    learned = [ref for ref in ordered if not is_held_out(ref.prompt_key, fraction)]
    return Split(learned, held)


def is_held_out(prompt_key: str, fraction: float) -> bool:
    """Whether a prompt belongs to the share that is not trained on."""
    return int(prompt_key[:8], 16) < int(fraction * 2**32)


def pack(refs: Sequence[RowRef], batch_tokens: int) -> list[list[RowRef]]:
    """Rows by length in batches of at most `batch_tokens` tokens, padding included."""
    batches: list[list[RowRef]] = []
    for ref in sorted(refs, key=lambda ref: (ref.length, ref.key)):
        if not batches or ref.length * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(ref)
    return batches


def plan_epoch(
    refs: Sequence[RowRef], batch_tokens: int, seed: int, epoch: int
) -> list[list[RowRef]]:
    """The batches of one epoch, in order."""
    shuffler = random.Random(f"{seed}/{epoch}")
    order = list(refs)
    shuffler.shuffle(order)
    batches = [
        batch
        for start in range(0, len(order), POOL_ROWS)
        for batch in pack(order[start : start + POOL_ROWS], batch_tokens)
    ]
    shuffler.shuffle(batches)
    return batches


def load_batch(reader: FeatureReader, refs: Sequence[RowRef], device: torch.device) -> Batch:
    """Read rows, pad them to the longest and bring them to the device of the heads."""
    rows = [reader.read(ref) for ref in refs]
    is_answer = pad_sequence([row.is_answer for row in rows], batch_first=True)
    batch = Batch(
        ids=pad_sequence([row.ids for row in rows], batch_first=True),
        hidden=pad_sequence([row.hidden for row in rows], batch_first=True).float(),
        has_label=torch.nn.functional.pad(is_answer[:, 1:], (0, 1)),
        teacher_ids=pad_sequence([row.teacher_ids for row in rows], batch_first=True),
        teacher_probs=pad_sequence([row.teacher_probs for row in rows], batch_first=True).float(),
    )
    return Batch(*(value.to(device) for value in batch))


def supervised(has_label: torch.Tensor, head: int) -> Positions:
    """Positions of `[B, S]` at which head `head` has a label."""
    row, column = has_label[:, head + 1 :].nonzero(as_tuple=True)
    context = row * has_label.shape[1] + column
    return Positions(context, context + head + 1)
