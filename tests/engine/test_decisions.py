"""Every step leaves a record of how its tree was chosen; and choices know nothing of the target's
word on the draft (DESIGN D6)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from bank_policies import BANK_POLICIES, bank_for
from draft_heads import heads_by_heart
from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams, TokenEvent, batch
from entmtp.engine.decision_log import DecisionLog, read_decisions
from entmtp.engine.made_for import made_for
from entmtp.errors import ArtefactError
from entmtp.scheduler import (
    Decision,
    MadeFor,
    PlainPolicy,
    Recorded,
    StepChoice,
    TreePolicy,
    policy_from_bank,
)
from entmtp.trees import Part, Tree
from fixtures import tiny
from reference import random_prompts

PROMPTS = random_prompts(4, 8, longest=12, seed=7)


class Told(NamedTuple):
    """What a run's events say."""

    token_ids: list[int]
    decisions: list[Decision]


def told(policy: TreePolicy, prompt: list[int], params: GenerationParams) -> Told:
    engine = Engine(tiny(), heads_by_heart(tiny(), "hydra"), policy)
    events = [e for e in engine.stream(prompt, params) if isinstance(e, TokenEvent)]
    assert events[0].decision is None  # the prompt's own token
    decisions = [event.decision for event in events[1:] if event.decision is not None]
    assert len(decisions) == len(events) - 1
    for event, decision in zip(events[1:], decisions, strict=True):
        assert decision.num_accepted == len(event.token_ids) - 1
        assert decision.tree.num_draft_tokens == event.num_draft_tokens
    return Told([token for event in events for token in event.token_ids], decisions)


def tree_of(decision: Decision) -> Tree:
    return decision.tree.tree if isinstance(decision.tree, Part) else decision.tree


@pytest.mark.parametrize("name", BANK_POLICIES)
def test_decisions_tell_of_their_step(name: str) -> None:
    params = GenerationParams(30, Sampling(0.8, seed=2))
    said, decisions = told(BANK_POLICIES[name](), [1, 2], params)
    num_said = 1
    for step, decision in enumerate(decisions):
        assert decision.signals.num_steps == step
        assert decision.signals.num_context == 2 + num_said
        assert decision.num_drafted >= decision.tree.num_draft_tokens
        assert decision.seconds > 0
        assert math.isnan(decision.signals.seconds) == (step == 0)
        if step:
            assert decision.signals.seconds == decisions[step - 1].seconds
            assert decision.signals.num_accepted == decisions[step - 1].num_accepted
        num_said += 1 + decision.num_accepted
    assert num_said == len(said) == 30


@pytest.mark.parametrize("name", ["throughput", "per-step", "ladder", "hysteresis"])
def test_a_recorded_policy_decides_as_it_would_without(name: str) -> None:
    params = GenerationParams(40, Sampling(0.8, seed=2))
    bare = told(BANK_POLICIES[name](), [3, 1], params)
    recorded = told(Recorded(BANK_POLICIES[name]()), [3, 1], params)
    assert recorded.token_ids == bare.token_ids
    assert list(map(tree_of, recorded.decisions)) == list(map(tree_of, bare.decisions))
    assert all(math.isnan(each.signals.root_entropy) for each in bare.decisions)
    for ours, theirs in zip(recorded.decisions, bare.decisions, strict=True):
        assert ours.signals.root_entropy >= 0
        assert repr(ours.estimate) == repr(theirs.estimate)  # a nan is not equal to itself
    predicted = [each.estimate for each in recorded.decisions if each.estimate is not None]
    assert len(predicted) == len(recorded.decisions)


@pytest.mark.parametrize("name", BANK_POLICIES)
def test_what_the_target_says_of_the_draft_is_not_known_to_the_choice(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever verification comes to, the step's choices were the same, alone and together."""
    heads = heads_by_heart(tiny(), "hydra")
    chosen: list[tuple[object, ...]] = []
    choose = StepChoice.choose

    def spied(self: StepChoice, *given: object) -> object:
        part = choose(self, *given)  # type: ignore[arg-type]
        chosen.append((self.widest, part, self.estimate, given))
        return part

    verify = batch.verify

    def scrambled(*given: object) -> torch.Tensor:
        hidden = verify(*given)  # type: ignore[arg-type]
        generator = torch.Generator().manual_seed(len(chosen))
        return torch.randn(hidden.shape, generator=generator, dtype=hidden.dtype)

    monkeypatch.setattr(StepChoice, "choose", spied)
    seen = []
    for word in (verify, scrambled):
        monkeypatch.setattr(batch, "verify", word)
        chosen.clear()
        engine = Engine(tiny(), heads, BANK_POLICIES[name]())
        for prompt in PROMPTS:
            engine.add(prompt, GenerationParams(20))
        engine.step()
        seen.append(list(chosen))
    assert len(seen[0]) == len(PROMPTS)
    assert repr(seen[0]) == repr(seen[1])


def test_the_log_of_a_run_is_read_as_it_was(tmp_path: Path) -> None:
    engine = Engine(tiny(), heads_by_heart(tiny(), "hydra"), Recorded(BANK_POLICIES["per-step"]()))
    path = tmp_path / "run.jsonl"
    events = []
    with DecisionLog(path, {"model": "tiny"}) as log:
        for sample in range(2):
            for event in engine.stream([1], GenerationParams(25)):
                log.write(sample, event)
                events.append((sample, event))
                # Each line is there at once.
                assert len(path.read_text().splitlines()) == 1 + len(events)
    run = read_decisions(path)
    assert run.about["model"] == "tiny"
    assert len(run.steps) == len(events)
    for step, (sample, event) in zip(run.steps, events, strict=True):
        assert step.sample == sample
        assert step.text == event.text
        decision = None if isinstance(event, FinishEvent) else event.decision
        if decision is None:
            assert step.num_nodes is None
        else:
            assert step.num_nodes == decision.tree.num_nodes
            assert step.num_accepted == decision.num_accepted
            assert decision.estimate is not None
            assert step.expected_accepted == pytest.approx(decision.estimate.num_accepted, abs=1e-5)
            assert step.entropy == pytest.approx(decision.signals.root_entropy, abs=1e-5)
    assert {step.sample for step in run.of_sample(1).steps} == {1}


def test_a_log_cut_short_is_read_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with DecisionLog(path, {}) as log:
        for event in Engine(tiny(), None, Recorded(PlainPolicy())).stream([1], GenerationParams(5)):
            log.write(0, event)
    whole = path.read_text()
    assert len(read_decisions(path).steps) == 6
    path.write_text(whole[:-20])  # killed while it wrote
    assert len(read_decisions(path).steps) == 5
    path.write_text(whole + "{}\n")
    with pytest.raises(ArtefactError, match=r"run\.jsonl:8 is no step of a run \(KeyError"):
        read_decisions(path)
    path.write_text(whole + "[\n")
    with pytest.raises(ArtefactError, match=r"run\.jsonl:8 is not JSON"):
        read_decisions(path)
    path.write_text(whole + "3\n")
    with pytest.raises(ArtefactError, match=r"run\.jsonl:8 is no JSON object"):
        read_decisions(path)
    for text in ("", json.dumps({"schema_version": 9}) + "\n"):
        path.write_text(text)
        with pytest.raises(ArtefactError, match=r"has schema version (None|9), this program"):
            read_decisions(path)
    with pytest.raises(ArtefactError, match="cannot read"):
        read_decisions(tmp_path / "none")


def test_a_bank_is_for_a_target_and_its_heads() -> None:
    heads = heads_by_heart(tiny(), "hydra")
    ours = made_for(tiny(), heads)
    assert ours == made_for(tiny(), heads)
    bank = bank_for(ours)
    assert bank.differences(ours) == ()
    others = made_for(tiny(), heads_by_heart(tiny(), "medusa")), made_for(tiny("qwen2"), heads)
    assert [len(bank.differences(other)) for other in others] == [1, 1]
    assert isinstance(ours, MadeFor)
    assert ours.machine
    engine = Engine(tiny(), heads, policy_from_bank("throughput", bank))
    params = GenerationParams(20)
    assert engine.generate([1], params).token_ids == Engine(tiny()).generate([1], params).token_ids


def test_in_company_a_step_is_the_whole_batch_s() -> None:
    policies = [BANK_POLICIES[name]() for name in ("throughput", "per-step", "ladder")]
    engine = Engine(tiny(), heads_by_heart(tiny(), "hydra"), policies[0])
    ids = [engine.add([1, 2], GenerationParams(20), policy) for policy in policies]
    before: list[Decision] = []
    for _ in range(4):
        engine.step()
        events = [list(engine.take_events(request_id))[-1] for request_id in ids]
        steps = [e.decision for e in events if isinstance(e, TokenEvent) and e.decision]
        assert len(steps) == 3
        for decision in steps:
            assert decision.signals.num_sequences == (3 if before else 1)
            widest = max((one.tree.num_nodes for one in before), default=0)
            assert decision.signals.num_rows == 3 * widest
        before = steps
