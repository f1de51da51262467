"""Drafting by captured graphs: one a level, of a fixed width, for any tree that fits.

Knows: heads, trees, and graphs of tensors. Does not know: the target, caches, acceptance.

Topology comes from a shelf by index (`trees.shelf`) into static tensors. A kind's own `fill` is
captured level by level as it goes, so that a selection may be asked between two graphs.

Dimension key: B batch · T tree slots · H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from entmtp.engine.drafting import Drafter
from entmtp.heads import Draft, DraftHeads
from entmtp.target.runtimes.capture import Captures, Tensors, on_the_side, sent
from entmtp.target.runtimes.graphs import node_bucket
from entmtp.trees import Level, Tree, TreeBuffers, tree_buffers
from entmtp.trees.shelf import ShelfShape, TreeShelf, cut


class GraphDrafter(Drafter):
    """A `Drafter` whose work on the device is replayed."""

    def __init__(self, heads: DraftHeads | None, min_rows: int, captures: Captures) -> None:
        super().__init__(heads, min_rows)
        self._captures = captures
        self._shelf: TreeShelf | None = None
        self._levels_of: dict[int, _LevelGraphs] = {}

    def make_room(self, trees: Sequence[Tree], device: torch.device) -> None:
        """Take these trees' sizes into account, so that no later step has to."""
        held = ShelfShape(1, ()) if self._shelf is None else self._shelf.shape
        shape = held
        for tree in trees:
            shape = shape.with_tree(tree)
        shape = shape._replace(num_slots=node_bucket(max(shape.num_slots, self._min_rows)))
        if self._shelf is None or shape != held:
            self._shelf = TreeShelf(shape, device)
            self._levels_of.clear()

    @property
    def most_slots(self) -> int:
        """Of any step, as far as is known."""
        least = node_bucket(self._min_rows)
        return least if self._shelf is None else max(least, self._shelf.shape.num_slots)

    def _buffers(self, trees: Sequence[Tree], device: torch.device) -> TreeBuffers:
        num_slots = node_bucket(max(self._min_rows, *(tree.num_nodes for tree in trees)))
        depth = max(tree.depth for tree in trees)
        if self._heads is None or depth == 0:
            return tree_buffers(trees, device, num_slots)
        self.make_room(trees, device)
        assert self._shelf is not None, "there is room now"
        if len(trees) not in self._levels_of:  # before the topology is loaded: it would be lost
            whole = self._load(torch.zeros(len(trees), dtype=torch.long, device=device))
            self._levels_of[len(trees)] = _LevelGraphs(self._heads, whole, self._captures)
        rows = sent(self._shelf.rows(trees), device)
        return cut(self._load(rows), num_slots, depth)

    def _load(self, rows: torch.Tensor) -> TreeBuffers:  # [B]
        """Buffers of the shelf's size, in the same memory for each B."""
        shelf = self._shelf
        assert shelf is not None, "there is room now"
        flat = self._captures.call(
            ("topology", shelf, len(rows)), lambda rows: _flat(shelf.buffers(rows)), [rows]
        )
        return _unflat(flat, shelf.shape)

    def _begin(self, root_ids: torch.Tensor, buffers: TreeBuffers) -> Draft:
        """The static draft, as far as these trees need it, with its roots in every slot."""
        draft = self._levels_of[len(root_ids)].draft
        draft.wide_ids.copy_(root_ids[:, None].expand_as(draft.wide_ids))
        draft.wide_log_probs.zero_()
        wide = buffers.num_slots + 1
        return Draft(draft.wide_ids[:, :wide], draft.wide_log_probs[:, :wide])

    def _fill_whole(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> None:
        for _ in self._levels(draft, context, buffers):
            pass

    def _levels(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> Iterator[int]:
        graphs = self._levels_of[len(context)]
        graphs.context.copy_(context)
        for level in range(buffers.depth):
            graphs.replay(level)
            yield level + 1


class _LevelGraphs:
    """One graph for each level, which read and write the same tensors every time."""

    def __init__(self, heads: DraftHeads, buffers: TreeBuffers, captures: Captures) -> None:
        batch, device = len(buffers.parents), buffers.parents.device
        self.draft = Draft.empty(torch.zeros(batch, dtype=torch.long, device=device), buffers)
        self.context = torch.zeros(batch, heads.hidden_size, dtype=heads.dtype, device=device)
        self._heads, self._buffers = heads, buffers
        self._running: Iterator[int] = iter(())
        on_the_side(self._fill, device)
        # Levels hand tensors on to the next: the running generator keeps them where they are.
        self._replays = [
            captures.record(partial(self._advance, level)) for level in range(buffers.depth)
        ]
        captures.num_captured += buffers.depth

    def replay(self, level: int) -> None:
        """Fill a level; those above it come first."""
        self._replays[level]()

    def _fill(self) -> None:
        for level in range(self._buffers.depth):
            self._advance(level)

    def _advance(self, level: int) -> None:
        if level == 0:
            self._running = self._heads.fill(self.draft, self.context, self._buffers)
        next(self._running)


def _flat(buffers: TreeBuffers) -> Tensors:
    levels = (
        tensor
        for level in buffers.levels
        for tensor in (level.slots, level.expand, level.parent_row, level.ranks, level.ways)
    )
    nodes = (buffers.parents, buffers.depths, buffers.valid, buffers.mask, buffers.ancestors)
    return (*nodes, *levels)


def _unflat(tensors: Tensors, shape: ShelfShape) -> TreeBuffers:
    parents, depths, valid, mask, ancestors, *rest = tensors
    fives = zip(*(rest[start::5] for start in range(5)), strict=True)
    levels = tuple(
        Level(slots, expand, parent_row, ranks, ways, size.num_ranks)
        for (slots, expand, parent_row, ranks, ways), size in zip(fives, shape.levels, strict=True)
    )
    nodes = (parents, depths, valid, mask, ancestors)
    return TreeBuffers(len(levels), shape.num_slots, *nodes, levels)
