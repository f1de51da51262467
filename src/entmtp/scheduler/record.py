"""What a step was decided by, and what became of it.

Knows: signals, choices, outcomes. Does not know: tokens, files.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from entmtp.scheduler.base import (
    Bid,
    DraftSignals,
    Estimate,
    Selection,
    Signals,
    TreePolicy,
)
from entmtp.scheduler.choice import StepChoice
from entmtp.trees import Part, Tree


class Decision(NamedTuple):
    """One step of one sequence."""

    signals: Signals
    draft: DraftSignals | None
    """What the tree was cut of; None where nothing was drafted"""
    tree: Tree | Part
    """What was verified"""
    estimate: Estimate | None
    """What was expected; None for a policy that expects nothing"""
    num_accepted: int
    """What came"""
    seconds: float
    """Of the step, whoever else took part"""

    @property
    def num_drafted(self) -> int:
        """Drafts made."""
        return 0 if self.draft is None else self.draft.tree.num_draft_tokens

    @property
    def confidences(self) -> tuple[float, ...]:
        """c_1, c_2, … of the greedy path, as deep as it was drafted; empty if nobody read the
        draft."""
        return self.draft.confidences if self.draft is not None and self.draft.log_probs else ()


def decision_of(
    choice: StepChoice, tree: Tree | Part, num_accepted: int, seconds: float
) -> Decision:
    """The record of a step that is over."""
    return Decision(choice.signals, choice.draft, tree, choice.estimate, num_accepted, seconds)


def as_json(decision: Decision) -> dict[str, object]:
    """As JSON values; what is not a number is null."""
    signals, estimate = decision.signals, decision.estimate or Estimate(*[math.nan] * 4)
    tree = decision.tree.tree if isinstance(decision.tree, Part) else decision.tree
    return {
        "step": signals.num_steps,
        "num_context": signals.num_context,
        "p0": _number(signals.root_probability),
        "entropy": _number(signals.root_entropy),
        "confidences": [round(value, 6) for value in decision.confidences],
        "score": _number(estimate.score),
        "rate": _number(estimate.rate),
        "num_drafted": decision.num_drafted,
        "num_nodes": tree.num_nodes,
        "depth": tree.depth,
        "paths": [list(path) for path in tree.paths[1:]],
        "expected_accepted": _number(estimate.num_accepted),
        "num_accepted": decision.num_accepted,
        "expected_seconds": _number(estimate.seconds),
        "seconds": _number(decision.seconds),
    }


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


class Recorded(TreePolicy):
    """A policy that also reads the root's signals, so that they can be put on record.

    It decides as it would without.
    """

    def __init__(self, policy: TreePolicy) -> None:
        self._policy = policy
        self.name = policy.name
        self.trees = policy.trees

    @property
    def num_rows(self) -> frozenset[int]:
        return self._policy.num_rows

    def begin(self, seed: int) -> Selection:
        return _ReadsRoot(self._policy.begin(seed))


class _ReadsRoot(Selection):
    reads_root = True

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self.reads_draft = selection.reads_draft
        self.stops_draft = selection.stops_draft
        self.bids = selection.bids

    def widest(self, signals: Signals) -> Tree:
        widest = self._selection.widest(signals)
        self.estimate = self._selection.estimate
        return widest

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        return self._selection.goes_on(signals, draft)

    def bid(self, signals: Signals, draft: DraftSignals) -> Bid | None:
        return self._selection.bid(signals, draft)

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree | Part:
        part = self._selection.choose(signals, draft)
        self.estimate = self._selection.estimate
        return part
