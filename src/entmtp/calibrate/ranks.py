"""What heads say at every start of answered rows: ranks of the true tokens, and a wide draft.

Knows: heads, answered rows, one tree. Does not know: the target, files, which tree is good.

Dimension key: L tokens of all rows of a group · N starts (answer tokens) · K draft heads ·
H hidden size · M nodes of the wide tree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from entmtp.calibrate.answers import Group
from entmtp.heads import DraftHeads
from entmtp.heads.forced import LabelMap, forced_features, ranks_of
from entmtp.trees import Tree, tree_buffers
from entmtp.trees.replay import MISS

_CHUNK = 1024
"""Starts whose features are in memory at a time."""
_MAX_LOGITS = 2**24
"""Of the nodes that are drafted at a time."""


class _Starts(NamedTuple):
    """A group as its heads see it."""

    context: torch.Tensor  # [L, H]
    token_ids: torch.Tensor  # [L]
    roots: torch.Tensor  # [N] the place of each start's root; its context is one in front
    remaining: torch.Tensor  # [N] tokens of its row behind each


@torch.inference_mode()
def true_ranks(heads: DraftHeads, group: Group, labels: LabelMap) -> torch.Tensor:
    """Ranks `[N, K]` int32 of the true tokens behind each start, given those in between."""
    starts = _starts(heads, group)
    embeddings = heads.embed(starts.token_ids) if heads.needs_path else None
    shape = (len(starts.roots), heads.num_draft_heads)
    ranks = torch.full(shape, MISS, dtype=torch.int32)
    for head in range(heads.num_draft_heads):
        for chunk in (starts.remaining > head).nonzero().flatten().split(_CHUNK):
            roots = starts.roots[chunk]
            features = forced_features(heads, head, starts.context, embeddings, roots - 1)
            true = labels.rows(starts.token_ids[roots + head + 1])
            found = ranks_of(heads, head, features, true)
            ranks[chunk.cpu(), head] = found.to("cpu", torch.int32)
    return ranks


@torch.inference_mode()
def wide_log_probs(heads: DraftHeads, group: Group, tree: Tree) -> torch.Tensor:
    """Log-probability `[N, M]` float32 of each node of `tree`, as a live step drafts it."""
    starts = _starts(heads, group)
    batch = max(1, _MAX_LOGITS // (tree.num_nodes * heads.config.draft_vocab_size))
    drafted = [
        heads.draft(
            starts.context[roots - 1],
            starts.token_ids[roots],
            tree_buffers([tree] * len(roots), heads.device),
        ).log_probs.cpu()
        for roots in starts.roots.split(batch)
    ]
    return torch.cat(drafted)


def _starts(heads: DraftHeads, group: Group) -> _Starts:
    """Contexts are those of `heads.observe`: what a live step drafts from, of the whole row."""
    contexts, roots, remaining = [], [], []
    for row, prompt_length in group.rows():
        hidden = group.hidden[row].to(heads.device)
        contexts.append(heads.context(hidden[None])[0])
        roots.append(torch.arange(row.start + prompt_length, row.stop))
        remaining.append(row.stop - 1 - roots[-1])
    return _Starts(
        torch.cat(contexts),
        group.token_ids.to(heads.device),
        torch.cat(roots).to(heads.device),
        torch.cat(remaining).to(heads.device),
    )
