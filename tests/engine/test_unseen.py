"""Heads look at what was kept only when they draft again, and draft the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draft_heads import heads_by_heart
from entmtp.calibrate.told import TakingTurns
from entmtp.engine import Engine, GenerationParams, TokenEvent, unseen
from entmtp.heads import DraftHeads
from entmtp.target import TargetModel
from entmtp.trees import ROOT, chain, full
from fixtures import tiny
from reference import random_prompts
from runtimes import drafting_natively, needs_native, on_native

TURNS = [full(2, 2), *[ROOT] * 5, chain(2), ROOT, full(2, 2), *[ROOT] * 140, chain(2), chain(2)]


def on_eager() -> tuple[TargetModel, DraftHeads]:
    return tiny(), heads_by_heart(tiny(), "hydra++")


def natively() -> tuple[TargetModel, DraftHeads]:
    target = on_native()
    return target, drafting_natively(heads_by_heart(tiny(), "hydra++", speaker=target))


@pytest.mark.parametrize("make", [on_eager, pytest.param(natively, marks=needs_native)])
def test_drafts_are_as_if_heads_had_looked_at_once(
    make: Callable[[], tuple[TargetModel, DraftHeads]], monkeypatch: pytest.MonkeyPatch
) -> None:
    later = accepted(*make())
    monkeypatch.setattr(unseen, "MOST_UNSEEN", 1)
    assert accepted(*make()) == later
    assert any(count > 1 for counts in later for count in counts)


def test_a_look_at_many_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target, heads = on_eager()
    looks = looked_at(heads, monkeypatch)
    [said] = accepted(target, heads, num_prompts=1)
    steps = [row[0] for row in looks[1:]]  # behind the prompt's
    assert steps.count(unseen.MOST_UNSEEN) == 2  # of 140 plain steps
    # One before each draft but the first, which follows the prompt.
    assert len(steps) == 2 + sum(tree.depth > 0 for tree in TURNS) - 1
    assert steps[0] == sum(said[1:7]), "the first draft's step and the plain ones behind it"
    # All that was said but the prompt's own token, up to the last draft: its step nobody needs.
    assert sum(steps) == sum(said[1:-1])


def test_nobody_looks_for_a_sequence_that_leaves_as_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target, heads = on_eager()
    looks = looked_at(heads, monkeypatch)
    policy = TakingTurns([ROOT, chain(2)])
    engine = Engine(target, heads, policy)
    policy.next = ROOT
    engine.generate(random_prompts(1, 8, longest=9, seed=3)[0], GenerationParams(9))
    assert len(looks) == 1, "at the prompt"


def test_of_several_that_keep_different_numbers_none_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    target, heads = on_eager()
    looks = looked_at(heads, monkeypatch)
    accepted(target, heads)
    assert any(len(set(row)) > 1 for row in looks)


def looked_at(heads: DraftHeads, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """How many tokens of each sequence the heads will be shown at a time."""
    looks: list[list[int]] = []
    observe = heads.observe

    def counted(hidden: Any, cache: Any, counts: Any) -> Any:
        looks.append([*counts])
        return observe(hidden, cache, counts)

    monkeypatch.setattr(heads, "observe", counted)
    return looks


def accepted(target: TargetModel, heads: DraftHeads, num_prompts: int = 3) -> list[list[int]]:
    """Tokens of every step of several sequences, one of which ends on the way."""
    policy = TakingTurns([ROOT, chain(2), full(2, 2)])
    engine = Engine(target, heads, policy)
    prompts = random_prompts(num_prompts, 8, longest=9, seed=3)
    limits = [400, 30, 400][:num_prompts]
    ids = [
        engine.add(prompt, GenerationParams(limit, ignore_eos=True))
        for prompt, limit in zip(prompts, limits, strict=True)
    ]
    found: list[list[int]] = [[] for _ in ids]
    for tree in TURNS:
        policy.next = tree
        engine.step()
        for request, counts in zip(ids, found, strict=True):
            events = engine.take_events(request)
            counts += [len(e.token_ids) for e in events if isinstance(e, TokenEvent)]
    return found
