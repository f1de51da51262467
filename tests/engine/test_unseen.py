"""Heads look at what plain steps have kept only when they draft again, and draft the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draft_heads import heads_by_heart
from entmtp.calibrate.told import TakingTurns
from entmtp.engine import Engine, GenerationParams, TokenEvent, batch
from entmtp.heads import DraftHeads
from entmtp.target import TargetModel
from entmtp.trees import ROOT, chain, full
from fixtures import tiny
from reference import random_prompts
from runtimes import drafting_natively, needs_native, on_native

TURNS = [full(2, 2), *[ROOT] * 5, chain(2), ROOT, full(2, 2), *[ROOT] * 40, chain(2), chain(2)]


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
    monkeypatch.setattr(batch, "MOST_UNSEEN", 1)
    assert accepted(*make()) == later
    assert any(count > 1 for counts in later for count in counts)


def test_a_look_at_many_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    target, heads = on_eager()
    looks: list[list[int]] = []
    observe = heads.observe

    def counted(hidden: Any, cache: Any, counts: Any) -> Any:
        looks.append([*counts])
        return observe(hidden, cache, counts)

    monkeypatch.setattr(heads, "observe", counted)
    accepted(target, heads, num_prompts=1)
    steps = [row[0] for row in looks[1:]]  # behind the prompt's
    assert steps.count(batch.MOST_UNSEEN) == 2  # of 40 plain steps
    assert 5 in steps
    assert len(steps) < len(TURNS) / 2


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
