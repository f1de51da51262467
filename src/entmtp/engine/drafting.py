"""From each sequence's choice to a drafted batch of trees that is ready to be verified.

Knows: heads, trees, and when to ask a choice. Does not know: the target, caches, acceptance.

Dimension key: B batch · T tree slots · H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import NamedTuple

import torch

from entmtp.heads import Draft, DraftHeads, check_tree
from entmtp.scheduler import StepChoice, nodes_of, places_in, share_rows
from entmtp.trees import Part, Tree, TreeBuffers, cut_buffers, int_tensor, tree_buffers


class DraftedTrees(NamedTuple):
    """What the target is to verify."""

    ids: torch.Tensor  # [B, T], the root at slot 0; padding slots carry the root's id
    buffers: TreeBuffers
    trees: list[Tree | Part]
    heads_seconds: float
    """The heads' share of the time, questions between levels included"""


class Drafter:
    """Drafts level by level as long as a sequence wants more, then cuts to what each chose."""

    def __init__(self, heads: DraftHeads | None, min_rows: int) -> None:
        self._heads = heads
        self._min_rows = min_rows

    def __call__(
        self,
        context: torch.Tensor | None,  # [B, H]; none without heads
        root_ids: torch.Tensor,  # [B]
        choices: Sequence[StepChoice],
    ) -> DraftedTrees:
        widest = [choice.widest for choice in choices]
        buffers = self._buffers(widest, root_ids.device)
        if self._heads is None or context is None or buffers.depth == 0:
            ids = root_ids.view(-1, 1).expand(-1, buffers.num_slots)
            return DraftedTrees(ids, buffers, [*widest], 0.0)
        for tree in widest:  # a selection may have left what its policy announced
            check_tree(self._heads, tree)
        started = perf_counter()
        draft = self._begin(root_ids, buffers)
        log_probs = self._fill(draft, context, buffers, choices)
        seconds = perf_counter() - started
        cut = self._cut(draft, buffers, choices, log_probs)
        return cut._replace(heads_seconds=seconds)

    def _fill(
        self,
        draft: Draft,
        context: torch.Tensor,  # [B, H]
        buffers: TreeBuffers,
        choices: Sequence[StepChoice],
    ) -> list[list[float]]:
        """Draft as many levels as somebody wants; each sequence's log-probabilities."""
        if not any(choice.stops_draft for choice in choices):
            self._fill_whole(draft, context, buffers)
            return _read(draft, choices)
        for depth in self._levels(draft, context, buffers):
            if depth < buffers.depth:
                log_probs = _read(draft, choices)
                # Everyone is asked, though one that wants more is enough.
                wishes = [c.goes_on(depth, row) for c, row in zip(choices, log_probs, strict=True)]
                if not any(wishes):
                    return log_probs
        return _read(draft, choices)

    def _cut(
        self,
        draft: Draft,
        buffers: TreeBuffers,
        choices: Sequence[StepChoice],
        log_probs: Sequence[Sequence[float]],
    ) -> DraftedTrees:
        """Of what was drafted, each sequence's own part."""
        parts = _chosen(choices, log_probs)
        if any(isinstance(part, Part) for part in parts):
            return self._cut_parts(draft, choices, parts)
        trees = [part for part in parts if isinstance(part, Tree)]
        if all(tree == c.widest for tree, c in zip(trees, choices, strict=True)):
            return DraftedTrees(draft.ids, buffers, parts, 0.0)
        cut = self._buffers(trees, draft.ids.device)
        # Slots are node ids; the root's stands in for padding.
        places = [
            [*places_in(choice.widest, tree), *[0] * (cut.num_slots - tree.num_nodes)]
            for tree, choice in zip(trees, choices, strict=True)
        ]
        return DraftedTrees(picked(draft.ids, places), cut, parts, 0.0)

    def _cut_parts(
        self,
        draft: Draft,
        choices: Sequence[StepChoice],
        parts: list[Tree | Part],
    ) -> DraftedTrees:
        """Parts made for this step alone: nothing is kept for another."""
        pairs = [(choice.widest, part) for part, choice in zip(parts, choices, strict=True)]
        cut, places = cut_buffers(
            [Part(whole, nodes_of(whole, part)) for whole, part in pairs],
            draft.ids.device,
            self._min_rows,
        )
        return DraftedTrees(picked(draft.ids, places), cut, parts, 0.0)

    def _buffers(self, trees: Sequence[Tree], device: torch.device) -> TreeBuffers:
        return tree_buffers(trees, device, self._min_rows)

    def _begin(self, root_ids: torch.Tensor, buffers: TreeBuffers) -> Draft:
        return Draft.empty(root_ids, buffers)

    def _fill_whole(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> None:
        assert self._heads is not None
        self._heads.fill_whole(draft, context, buffers)

    def _levels(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> Iterator[int]:
        """Fill the draft; the depth behind each level."""
        assert self._heads is not None
        return self._heads.fill(draft, context, buffers)


def _chosen(
    choices: Sequence[StepChoice], log_probs: Sequence[Sequence[float]]
) -> list[Tree | Part]:
    """What each sequence takes; those that bid share the batch's rows."""
    asked = list(zip(choices, log_probs, strict=True))
    bids = [choice.bid(row) if len(asked) > 1 else None for choice, row in asked]
    if not any(bids):
        return [choice.choose(row) for choice, row in asked]
    fixed = [
        choice.choose(row) if bid is None else None
        for (choice, row), bid in zip(asked, bids, strict=True)
    ]
    room = share_rows(bids, max((part.num_nodes for part in fixed if part), default=1))
    return [
        part or choice.choose(row, room) for (choice, row), part in zip(asked, fixed, strict=True)
    ]


def _read(draft: Draft, choices: Sequence[StepChoice]) -> list[list[float]]:
    """Log-probabilities of each sequence's slots, and of the one behind them that takes padding;
    none where nobody asks, for it is a wait."""
    if not any(choice.reads_draft for choice in choices):
        return [[]] * len(choices)
    rows: list[list[float]] = draft.wide_log_probs.tolist()
    return rows


def picked(ids: torch.Tensor, places: Sequence[Sequence[int]]) -> torch.Tensor:
    """Of drafted ids `[B, T]` those in `places` `[B][S]`."""
    if ids.device.type == "cpu":  # to read them takes less time than to gather them
        pairs = zip(ids.tolist(), places, strict=True)
        return int_tensor([[row[slot] for slot in slots] for row, slots in pairs], ids.device)
    return ids.gather(1, int_tensor(places, ids.device))
