"""What heads say at every start of answered rows: ranks of the true tokens, and a wide draft.

Knows: heads as the engine drives them (`observe`, `fill`), answered rows, one tree. Does not know:
the target, files, which tree is good.

Both are asked of the very calls of a live step, so that a trace says what a step sees on whatever
the heads compute with.

Dimension key: B rows of a group · S longest row · L tokens of all its rows · N starts (answer
tokens) · K draft heads · H hidden size · M nodes of the wide tree.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from entmtp.calibrate.answers import Group
from entmtp.heads import Draft, DraftHeads
from entmtp.trees import Tree, tree_buffers
from entmtp.trees.replay import MAX_RANK, MISS

_MAX_LOGITS = 2**24
"""Of the starts that are drafted at a time."""
_MAX_NODES = 2**14
"""Likewise."""


class Starts(NamedTuple):
    """A group as its heads see it."""

    contexts: torch.Tensor  # [N, H] that a step at each start drafts from
    token_ids: torch.Tensor  # [L]
    roots: torch.Tensor  # [N] place of each start's root in `token_ids`
    remaining: torch.Tensor  # [N] tokens of its row behind each


@torch.inference_mode()
def see(heads: DraftHeads, group: Group) -> Starts:
    """Let heads observe a group's rows as a run does: the prompt, then token by token."""
    rows = group.rows()
    prompts = group.prompt_lengths.tolist()
    device = heads.device
    hidden = pad_sequence([group.hidden[row] for row, _ in rows], batch_first=True)
    # In the format that the engine hands them in.
    hidden = hidden.to(device, heads.dtype if heads.kernels is None else torch.float32)
    cache = heads.new_cache(len(rows), hidden.shape[1])
    steps = [heads.observe(hidden[:, : max(prompts)], cache, prompts)]
    batch = torch.arange(len(rows), device=device)
    places = group.prompt_lengths.to(device)
    for _ in range(int(group.answer_lengths.max()) - 1):
        # A row that is over goes on with its padding, which nobody looks at.
        new = hidden[batch, places.clamp_max(hidden.shape[1] - 1)][:, None]
        steps.append(heads.observe(new, cache, [1] * len(rows)))
        places = places + 1
    contexts = torch.stack(steps, 1)  # [B, longest answer, H]
    answers = group.answer_lengths.tolist()
    roots = [torch.arange(row.start + prompt, row.stop) for row, prompt in rows]
    return Starts(
        torch.cat([contexts[i, :count] for i, count in enumerate(answers)]),
        group.token_ids.to(device),
        torch.cat(roots).to(device),
        torch.cat([torch.arange(count).flip(0) for count in answers]).to(device),
    )


@torch.inference_mode()
def true_ranks(heads: DraftHeads, starts: Starts) -> torch.Tensor:
    """Ranks `[N, K]` int32 of the true tokens behind each start, given those in between.

    `MISS` where the row has ended, and where the rank is `MAX_RANK` or more.
    """
    comb = _comb(heads)
    parts = []
    for chunk in _chunks(heads, comb, len(starts.roots)):
        roots, remaining = starts.roots[chunk], starts.remaining[chunk]
        buffers = tree_buffers([comb] * len(roots), heads.device)
        draft = Draft.empty(starts.token_ids[roots], buffers)
        ranks = torch.full((len(roots), heads.num_draft_heads), MISS, dtype=torch.int32)
        for depth in heads.fill(draft, starts.contexts[chunk], buffers):
            places = (roots + depth).clamp_max(len(starts.token_ids) - 1)
            true = starts.token_ids[places]
            first = comb.paths.index((0,) * depth)
            is_true = draft.ids[:, first : first + comb.depths.count(depth)] == true[:, None]
            is_found = is_true.any(-1) & (remaining >= depth)
            rank = torch.where(is_found, is_true.int().argmax(-1), MISS)
            ranks[:, depth - 1] = rank.to("cpu", torch.int32)
            draft.wide_ids[:, first] = true  # the next level goes on from the truth
        parts.append(ranks)
    return torch.cat(parts)


@torch.inference_mode()
def wide_log_probs(heads: DraftHeads, starts: Starts, tree: Tree) -> torch.Tensor:
    """Log-probability `[N, M]` float32 of each node of `tree`, as a live step drafts it."""
    parts = []
    for chunk in _chunks(heads, tree, len(starts.roots)):
        ids = starts.token_ids[starts.roots[chunk]]
        buffers = tree_buffers([tree] * len(ids), heads.device)
        parts.append(heads.draft(starts.contexts[chunk], ids, buffers).log_probs.cpu())
    return torch.cat(parts)


def _comb(heads: DraftHeads) -> Tree:
    """A path as deep as there are heads, and beside each of its nodes all other ranks."""
    ranks = range(min(MAX_RANK, heads.config.draft_vocab_size))
    depths = range(heads.num_draft_heads)
    return Tree.from_paths([(0,) * depth + (rank,) for depth in depths for rank in ranks])


def _chunks(heads: DraftHeads, tree: Tree, num_starts: int) -> list[slice]:
    """Starts that are drafted together."""
    num_logits = heads.config.draft_vocab_size * max(1, len(set(tree.parents[1:])))
    size = max(1, min(_MAX_LOGITS // num_logits, _MAX_NODES // tree.num_nodes))
    return [slice(first, first + size) for first in range(0, num_starts, size)]
