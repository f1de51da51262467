"""Policies pick trees from committed signals, each sequence for itself."""

from __future__ import annotations

import math

import pytest

from entmtp.errors import TreeError
from entmtp.scheduler import (
    DraftSignals,
    PlainPolicy,
    RandomPolicy,
    Selection,
    Signals,
    StaticPolicy,
    StepChoice,
    TreePolicy,
    places_in,
)
from entmtp.trees import ROOT, Tree, chain, full, medusa_63

TREES = (ROOT, chain(2), medusa_63())


def picks(policy: TreePolicy, seed: int, count: int = 60) -> list[Tree]:
    selection = policy.begin(seed)
    signals = [Signals(num_steps=step, num_accepted=step % 3) for step in range(count)]
    return [selection.widest(each) for each in signals]


@pytest.mark.parametrize("policy", [PlainPolicy(), StaticPolicy(chain(3)), RandomPolicy(TREES)])
def test_only_announced_trees_are_picked(policy: TreePolicy) -> None:
    assert set(picks(policy, 0)) <= set(policy.trees)
    assert policy.name in ("plain", "static", "random")


def test_plain_and_static() -> None:
    assert picks(PlainPolicy(), 5) == [ROOT] * 60
    assert picks(StaticPolicy(medusa_63()), 5) == [medusa_63()] * 60
    # They want to see nothing, and pay for nothing.
    for policy in (PlainPolicy(), StaticPolicy(chain(3))):
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        assert [choice.reads_root, choice.reads_draft, choice.stops_draft] == [False] * 3
        assert choice.choose([]) is choice.widest


def test_random_is_keyed_by_the_seed() -> None:
    policy = RandomPolicy(TREES)
    first = picks(policy, 1)
    assert set(first) == set(TREES)
    assert first != picks(policy, 2)
    # Whatever was begun in between.
    assert picks(policy, 1) == first


def test_random_stops_and_leaves_branches_out() -> None:
    selection = RandomPolicy([full(3, 3)]).begin(4)
    draft = DraftSignals(full(3, 3))
    chosen = [selection.choose(Signals(step, 0), draft) for step in range(40)]
    for tree in chosen:
        assert Tree.from_paths(tree.paths[1:]) == tree  # whole, and in order
        assert set(tree.paths) <= set(full(3, 3).paths)
    assert len(set(chosen)) > 10
    assert full(3, 3) in chosen
    assert {selection.goes_on(Signals(step, 0), draft) for step in range(40)} == {True, False}


def test_confidences_are_those_of_the_greedy_path() -> None:
    tree = Tree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0), (1, 0, 0)])
    log_probs = tuple(-0.1 * node for node in range(tree.num_nodes))
    draft = DraftSignals(tree, log_probs)
    # (0, 0, 0) is not there: nothing is said of depth 3.
    assert draft.confidences == pytest.approx((math.exp(-0.1), math.exp(-0.3)))
    assert DraftSignals(Tree.from_paths([(2,)]), (0.0, -1.0)).confidences == ()
    assert DraftSignals(ROOT, (0.0,)).confidences == ()


class Recorded(Selection):
    """Stops as told, chooses as told, and remembers what it was shown."""

    reads_draft = True
    stops_draft = True

    def __init__(self, tree: Tree, last_depth: int, chosen: Tree | None = None) -> None:
        self._tree, self._last_depth, self._chosen = tree, last_depth, chosen
        self.seen: list[DraftSignals] = []

    def widest(self, signals: Signals) -> Tree:
        return self._tree

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        self.seen.append(draft)
        return draft.tree.depth < self._last_depth

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        self.seen.append(draft)
        return self._chosen or draft.tree


def test_who_has_stopped_is_not_asked_again() -> None:
    selection = Recorded(full(2, 4), last_depth=2)
    choice = StepChoice(selection, Signals(0, 0), 3)
    assert choice.widest == full(2, 3)  # cut to what may be said
    values = [-float(node) for node in range(15)]
    assert [choice.goes_on(depth, values) for depth in (1, 2, 3)] == [True, False, False]
    assert choice.choose(values) == full(2, 2)
    assert [draft.tree.depth for draft in selection.seen] == [1, 2, 2]
    # Nothing of levels that are not drafted is shown.
    assert [len(draft.log_probs) for draft in selection.seen] == [3, 7, 7]


def test_who_drafts_nothing_is_asked_nothing() -> None:
    """Not even in company of those who do."""
    selection = Recorded(full(2, 2), last_depth=9)
    choice = StepChoice(selection, Signals(0, 0), 0)  # the last token
    assert not choice.goes_on(1, [0.0])
    assert choice.choose([0.0]) == ROOT
    assert selection.seen == []


def test_a_part_is_found_in_the_whole() -> None:
    part = Tree.from_paths([(1,), (1, 0)])
    choice = StepChoice(Recorded(full(2, 2), 9, part), Signals(0, 0), 9)
    assert choice.choose([]) == part
    assert places_in(full(2, 2), part) == (0, 2, 5)


def test_what_was_not_drafted_cannot_be_chosen() -> None:
    choice = StepChoice(Recorded(full(2, 2), 9, chain(3)), Signals(0, 0), 9)
    with pytest.raises(TreeError, match=r"chose the path \[0, 0, 0\], which was not drafted"):
        choice.choose([])
