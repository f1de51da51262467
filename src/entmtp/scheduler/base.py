"""Which tree next: the protocol that every policy follows.

Knows: trees and signals of the committed text. Does not know: models, tokens, time. A policy
never sees anything of the tokens to be verified (DESIGN D6): that is what keeps every policy
lossless.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from entmtp.trees import Tree


class Signals(NamedTuple):
    """What a policy may look at before a step of one sequence."""

    num_steps: int
    """Steps that this sequence has taken"""
    num_accepted: int
    """Drafts accepted in its last step; 0 before the first"""


Select = Callable[[Signals], Tree]
"""Picks the next step's tree for one sequence; may remember, for that sequence only."""


class TreePolicy(Protocol):
    """A rule that gives each sequence its own selection, with fresh state."""

    name: str
    trees: tuple[Tree, ...]
    """Every tree that may be picked: checked against the heads before the first step"""

    def begin(self, seed: int) -> Select:
        """Start a sequence. `seed` is the sequence's, for policies that draw."""
        ...
