"""One sequence's choice in one step: what a selection says, kept within what may be drafted.

Knows: a selection, its signals, and how deep a draft may be. Does not know: other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from entmtp.errors import TreeError
from entmtp.scheduler.base import Bid, DraftSignals, Estimate, Room, Selection, Signals
from entmtp.trees import Part, Tree


class StepChoice:
    """Asks a selection in a step's order: `widest`, `goes_on` by level, `bid`, `choose`."""

    def __init__(self, selection: Selection, signals: Signals, max_depth: int) -> None:
        """`max_depth`: how many drafts a step may still accept; deeper nodes are cut."""
        self._selection = selection
        self.signals = signals
        self.widest = selection.widest(signals).truncate(max_depth)
        """All that may be drafted"""
        self.reads_root = selection.reads_root
        self.reads_draft = selection.reads_draft
        self.stops_draft = selection.stops_draft
        self.draft: DraftSignals | None = None
        """What it chose of, once it has; None where nothing was drafted"""
        self._depth = self.widest.depth

    def goes_on(self, depth: int, log_probs: Sequence[float]) -> bool:
        """Whether this sequence wants the level behind `depth`; after a no, none.

        Args:
            log_probs: of the nodes of `widest`, if it `reads_draft`; those of undrafted levels
                mean nothing.
        """
        if self._depth <= depth or not self.stops_draft:
            return self._depth > depth
        if not self._selection.goes_on(self.signals, self._draft(depth, log_probs)):
            self._depth = depth
        return self._depth > depth

    def bid(self, log_probs: Sequence[float]) -> Bid | None:
        """What rows are worth to this sequence; None if it does not say, or drafted nothing."""
        if self.widest.depth == 0 or not self._selection.bids:
            return None
        return self._selection.bid(self.signals, self._draft(self._depth, log_probs))

    def choose(self, log_probs: Sequence[float], room: Room | None = None) -> Tree | Part:
        """The part of the draft to verify.

        Args:
            room: what the batch gives each sequence, where it shares rows out.

        Raises:
            TreeError: the selection wants what was not drafted.
        """
        if self.widest.depth == 0:  # whether or not others in the batch have a draft
            return self.widest
        draft = self._draft(self._depth, log_probs, room)
        self.draft = draft
        part = self._selection.choose(self.signals, draft)
        if isinstance(part, Part):
            part.check()
        elif part != draft.tree:
            places_in(draft.tree, part)
        return part

    @property
    def estimate(self) -> Estimate | None:
        """What the selection chose by."""
        return self._selection.estimate

    def _draft(
        self, depth: int, log_probs: Sequence[float], room: Room | None = None
    ) -> DraftSignals:
        # Breadth-first ids: a tree cut to a depth is the front of the whole one.
        tree = self.widest.truncate(depth)
        seen = tuple(log_probs[: tree.num_nodes]) if self.reads_draft else ()
        return DraftSignals(tree, seen, room)


@lru_cache(maxsize=1024)
def places_in(whole: Tree, part: Tree) -> tuple[int, ...]:
    """Where each node of a part is in the whole.

    Raises:
        TreeError: it is not a part.
    """
    nodes = {path: node for node, path in enumerate(whole.paths)}
    for path in part.paths:
        if path not in nodes:
            raise TreeError(
                f"a policy chose the path {list(path)}, which was not drafted; choose a part of"
                " the draft"
            )
    return tuple(nodes[path] for path in part.paths)


def nodes_of(whole: Tree, part: Tree | Part) -> tuple[int, ...]:
    """Ids in the whole of a part's nodes."""
    return part.nodes if isinstance(part, Part) else places_in(whole, part)
