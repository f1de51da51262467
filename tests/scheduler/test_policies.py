"""Policies pick trees from committed signals, each sequence for itself."""

from __future__ import annotations

import pytest

from entmtp.scheduler import PlainPolicy, RandomPolicy, Signals, StaticPolicy, TreePolicy
from entmtp.trees import ROOT, Tree, chain, medusa_63

TREES = (ROOT, chain(2), medusa_63())


def picks(policy: TreePolicy, seed: int, count: int = 60) -> list[Tree]:
    select = policy.begin(seed)
    return [select(Signals(num_steps=step, num_accepted=step % 3)) for step in range(count)]


@pytest.mark.parametrize("policy", [PlainPolicy(), StaticPolicy(chain(3)), RandomPolicy(TREES)])
def test_only_announced_trees_are_picked(policy: TreePolicy) -> None:
    assert set(picks(policy, 0)) <= set(policy.trees)
    assert policy.name in ("plain", "static", "random")


def test_plain_and_static() -> None:
    assert picks(PlainPolicy(), 5) == [ROOT] * 60
    assert picks(StaticPolicy(medusa_63()), 5) == [medusa_63()] * 60


def test_random_is_keyed_by_the_seed() -> None:
    policy = RandomPolicy(TREES)
    first = picks(policy, 1)
    assert set(first) == set(TREES)
    assert first != picks(policy, 2)
    # Whatever was begun in between.
    assert picks(policy, 1) == first
