"""A replay of a trace is the live run, step by step, and what policies see is in it (DESIGN D7)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from confident import ConfidentPolicy, ConfidentSelection
from draft_heads import KINDS
from entmtp.calibrate import replay
from entmtp.calibrate.answers import answer_params
from entmtp.calibrate.collect import TraceConfig
from entmtp.calibrate.trace import RankTrace
from entmtp.engine import Engine, TokenEvent
from entmtp.scheduler import RandomPolicy, Selection, StaticPolicy, TreePolicy
from entmtp.scheduler.times import AtContext, StepTimes
from entmtp.trees import ROOT, Tree, chain, full
from rank_traces import ANSWERS, collect, questions, talker, talkers_heads

EOS = 225
"""Said in the midst of some of the answers."""
WIDE = full(3, 4)
ODD = Tree.from_paths(
    [(1,), (0,), (1, 2), (1, 0), (0, 4), (1, 0, 1), (0, 4, 0), (1, 0, 1, 0), (30,)]
)
TEMPERATURES = (0.0, 0.25)


@lru_cache
def trace(kind: str, temperature: float, wide: Tree | None = WIDE) -> RankTrace:
    config = TraceConfig(replace(ANSWERS, temperature=temperature, seed=5), wide)
    with TemporaryDirectory() as folder:
        return collect(talker(EOS), talkers_heads(kind), Path(folder) / "t", config).trace


def live(policy: TreePolicy, kind: str, temperature: float) -> list[TokenEvent]:
    """The steps of a live run over the same rows."""
    config = replace(ANSWERS, temperature=temperature, seed=5)
    engine = Engine(talker(EOS), talkers_heads(kind), policy)
    steps: list[TokenEvent] = []
    for question in questions(talker(EOS)):
        events = list(engine.stream(question.prompt_ids, answer_params(question, config)))
        steps += [event for event in events if isinstance(event, TokenEvent)][1:]
    return steps


def lengths(steps: list[TokenEvent]) -> list[int]:
    return [len(step.token_ids) - 1 for step in steps]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_every_tree_accepts_what_the_trace_says(
    kind: str, temperature: float
) -> None:
    own = trace(kind, temperature, None)
    assert len(set(np.diff(own.row_starts).tolist())) > 1, "an answer ends by itself"
    seen = set()
    for tree in (ROOT, chain(4), ODD, own.wide_tree):
        run = replay.replay_tree(own, tree)
        assert run.accepted.tolist() == lengths(live(StaticPolicy(tree), kind, temperature))
        seen |= set(run.accepted.tolist())
    assert seen >= {0, 1, 2}


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_random_policy_takes_the_same_steps(kind: str, temperature: float) -> None:
    policy = RandomPolicy([chain(3), full(2, 3), ODD])
    config = replace(ANSWERS, temperature=temperature, seed=5)
    seeds = [answer_params(q, config).sampling.seed or 0 for q in questions(talker(EOS))]
    own = trace(kind, temperature)
    again = replay.replay_policy(own, policy, seeds, ANSWERS.max_tokens)
    steps = live(policy, kind, temperature)
    assert again.run.accepted.tolist() == lengths(steps)
    assert [tree.num_draft_tokens for tree in again.trees] == [s.num_draft_tokens for s in steps]
    whole = replay.replay_policy(own, StaticPolicy(ODD))
    assert whole.run.accepted.tolist() == replay.replay_tree(own, ODD).accepted.tolist()


class Watched(ConfidentPolicy):
    """Keeps its selections."""

    def begin(self, seed: int) -> Selection:
        self.begun = [*getattr(self, "begun", []), ConfidentSelection(self)]
        return self.begun[-1]


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_policy_sees_in_a_trace_what_it_sees_live(kind: str, temperature: float) -> None:
    own, trees = trace(kind, temperature), [chain(2), full(2, 3), WIDE]
    there, here = Watched(trees), Watched(trees)
    steps = live(there, kind, temperature)
    again = replay.replay_policy(own, here, max_tokens=ANSWERS.max_tokens)
    assert again.run.accepted.tolist() == lengths(steps)
    assert {tree.depth for tree in again.trees} >= {1, 2, 3}
    for one, other in zip(there.begun, here.begun, strict=True):
        shown, said = (
            [signals._replace(seconds=0.0) for signals in each.signals] for each in (one, other)
        )
        np.testing.assert_allclose(shown, said, atol=1e-4)
        for (drafted, cut), (again_drafted, chosen) in zip(one.cuts, other.cuts, strict=True):
            assert (drafted.tree, cut) == (again_drafted.tree, chosen)
            np.testing.assert_allclose(drafted.log_probs, again_drafted.log_probs, atol=1e-4)
    levels = [draft.tree.depth for selection in here.begun for draft, _ in selection.cuts]
    drafted = again.drafted[[tree.depth > 0 for tree in again.trees]]
    assert levels == drafted[drafted > 0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wide_draft_is_the_live_one_node_by_node(kind: str) -> None:
    own = trace(kind, 0.25)
    policy = Watched([WIDE], stop=0.0, cut=0.0)
    live(policy, kind, 0.25)
    drafts = [draft for selection in policy.begun for draft, _ in selection.cuts]
    starts = replay.replay_policy(own, Watched([WIDE], stop=0.0, cut=0.0)).run.starts
    shown = own.log_probs[starts[own.remaining[starts] > 1]]
    assert (own.log_probs[:, 0] == 0).all()
    assert len(drafts) > 30
    for row, draft in zip(shown, drafts, strict=False):
        np.testing.assert_allclose(row[: draft.tree.num_nodes], draft.log_probs, atol=1e-4)


def test_a_chooser_picks_a_tree_for_each_start() -> None:
    own = trace("hydra", 0.0)
    trees = [ROOT, chain(2), WIDE]
    chosen = np.arange(len(own.ranks)) % 3
    run = replay.replay_choices(own, trees, chosen)
    each = [replay.accepted(own, tree) for tree in trees]
    assert run.accepted.tolist() == [each[start % 3][start] for start in run.starts.tolist()]
    for start, then in pairwise(run.starts.tolist()):
        is_next = then == start + 1 + each[start % 3][start]
        assert is_next or then in own.row_starts
    always = replay.replay_choices(own, trees, np.full(len(own.ranks), 2))
    assert always.mean_acceptance_length == replay.mean_acceptance_length(own, WIDE)


def test_a_policy_is_told_where_it_stands_and_what_the_clock_said() -> None:
    own = trace("hydra", 0.0)
    here, there = Watched([chain(2), WIDE]), Watched([chain(2), WIDE])
    table = StepTimes((1, 3, 13), (10.0, 11.0, 20.0), (0.0, 1.0, 2.0, 3.0, 4.0), 0.5, (), 0.25)
    again = replay.replay_policy(
        own, here, max_tokens=ANSWERS.max_tokens, times=[AtContext(0, table)]
    )
    live(there, "hydra", 0.0)
    for one, other in zip(there.begun, here.begun, strict=True):
        shown = [(seen.num_context, seen.num_rows) for seen in one.signals]
        assert shown == [(seen.num_context, seen.num_rows) for seen in other.signals]
    lasts = [seen.num_rows for selection in here.begun for seen in selection.signals]
    switches = [
        last not in (0, tree.num_nodes) for tree, last in zip(again.trees, lasts, strict=True)
    ]
    assert any(switches)
    expected = [
        table.verify(tree.num_nodes) + table.draft_seconds[levels] + 0.5 + 0.25 * is_switch
        for tree, levels, is_switch in zip(
            again.trees, again.drafted.tolist(), switches, strict=True
        )
    ]
    assert again.seconds.tolist() == expected
    told = [seen.seconds for selection in here.begun for seen in selection.signals[1:]]
    assert set(told) <= set(expected)
    tokens = (1 + again.run.accepted).sum()
    assert again.tokens_per_second == pytest.approx(tokens / sum(expected))
    assert np.isnan(replay.replay_policy(own, Watched([WIDE])).seconds).all()
