"""Which tree next: the protocol that every policy follows.

Knows: trees, signals of the committed text, and how sure the heads are of what they draft. Does
not know: models, tokens, time. The draft is itself a function of the committed text, and nothing
is known here of what the target will say to it (DESIGN D6): that keeps every policy lossless.

In each step a sequence is asked for the largest tree it may want (`widest`), between the levels
of drafting whether it wants another (`goes_on`), and for the part of the draft that the target
is to verify (`choose`). In company it may first say what rows are worth to it (`bid`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from entmtp.trees import Part, Tree


class Signals(NamedTuple):
    """What a policy may look at before a step of one sequence."""

    num_steps: int
    """Steps that this sequence has taken"""
    num_accepted: int
    """Drafts accepted in its last step; 0 before the first"""
    root_probability: float = math.nan
    """Of the likeliest token in the target's own distribution that the root came from, that is,
    behind the last visited node of the last step, or behind the prompt; at temperature 1 and
    unprocessed, whatever the sampling. Not a number unless the selection `reads_root`"""
    root_entropy: float = math.nan
    """Of that same distribution, in nats; not a number unless the selection `reads_root`"""
    num_context: int = 0
    """Tokens of the committed text, prompt included"""
    seconds: float = math.nan
    """Of its last step by the clock, whoever else took part; not a number before the first"""
    num_sequences: int = 1
    """That took part in its last step, itself included"""
    num_rows: int = 0
    """That were verified in its last step, all sequences' together; 0 before the first"""


class Room(NamedTuple):
    """What a batch gives each of its sequences in one step."""

    num_sequences: int
    num_slots: int
    """Rows of each: a smaller tree saves nothing"""


class Bid(NamedTuple):
    """What rows are worth to one sequence in this step."""

    gains: Sequence[float]
    """Tokens expected to be accepted with 1, 2, … rows, the root's included; never falling"""
    rate: float
    """Tokens a second that it makes in this company: what time is worth"""
    verify_seconds: Callable[[int], Sequence[float]]
    """By the number of sequences: of 0, 1, 2, … rows of each; its last slope goes on"""
    last_rows: int = 0
    """Of each sequence in the step before, as this one knows it; 0 before the first"""
    switch_seconds: float = 0.0
    """What a step takes longer where each sequence has another number of rows than that"""


class Estimate(NamedTuple):
    """What a choice was made by."""

    score: float
    """What the tree was looked up by; not a number where nothing is"""
    num_accepted: float
    """Drafts expected to be accepted"""
    seconds: float
    """That the step is expected to take"""
    rate: float
    """Tokens a second that time was counted at"""


class DraftSignals(NamedTuple):
    """How sure the heads are of one sequence's draft, as far as it has come."""

    tree: Tree
    """What has been drafted"""
    log_probs: tuple[float, ...] = ()
    """Natural log-probability, by its head, of each node of `tree` given the path to its parent;
    the root's is 0. Empty unless the selection `reads_draft`"""
    room: Room | None = None
    """What the batch gives each sequence, where it shares rows out; None for one alone"""

    @property
    def confidences(self) -> tuple[float, ...]:
        """c_1, c_2, …: probability of each head's best child along the greedy path.

        They end where the tree does not have that child.
        """
        depths = range(1, self.tree.num_best + 1)
        # The best child of best children is the first node of its level.
        return tuple(math.exp(self.log_probs[self.tree.depths.index(d)]) for d in depths)


class Selection(ABC):
    """The choices for one sequence. May remember things, of that sequence only.

    It says what it wants to see; what nobody wants is neither computed nor waited for.
    """

    reads_root: bool = False
    """Signals of the root. They come with the step's one copy to the host"""
    reads_draft: bool = False
    """The heads' log-probabilities: one more wait in a step, or one a level with `stops_draft`"""
    stops_draft: bool = False
    """To be asked between levels whether it `goes_on`"""
    bids: bool = False
    """To be asked, in company, for a `bid` before it chooses"""
    estimate: Estimate | None = None
    """What the last choice was made by, for whoever keeps records"""

    @abstractmethod
    def widest(self, signals: Signals) -> Tree:
        """All that may be drafted in this step; the root alone decodes plainly."""

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        """Whether to draft the next level. Asked between levels, if it `stops_draft`.

        After a no the sequence is not asked again, and deeper levels are not part of its draft,
        whether or not others in the batch go on.
        """
        del signals, draft
        return True

    def bid(self, signals: Signals, draft: DraftSignals) -> Bid | None:
        """What rows are worth in this step, if the batch is to share them out.

        Asked of a selection that `bids` in each step in which several sequences drafted; what
        comes of it is the `room` that it chooses in.
        """
        del signals, draft
        return None

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree | Part:
        """The part of `draft.tree` to be verified: by default all of it.

        Asked in each step that drafts something for this sequence. A tree made for this step
        alone is cheapest as a `Part` of `draft.tree`.
        """
        del signals
        return draft.tree


class TreePolicy(ABC):
    """A rule that gives each sequence its own selection, with fresh state."""

    name: str
    trees: tuple[Tree, ...]
    """Every tree that may be drafted: checked against the heads before the first step"""

    @property
    def num_rows(self) -> frozenset[int]:
        """How many rows its verifications are likely to have: runtimes make ready for them."""
        return frozenset(tree.num_nodes for tree in self.trees)

    @abstractmethod
    def begin(self, seed: int) -> Selection:
        """Start a sequence. `seed` is the sequence's, for policies that draw."""
