"""What policies are shown is of the step it serves, and of committed text alone (DESIGN D6)."""

from __future__ import annotations

from math import isnan

import pytest
import torch

from confident import ConfidentPolicy, ConfidentSelection
from draft_heads import KINDS, exact_heads, overfit_heads, random_heads
from entmtp.decode import Sampling, signals
from entmtp.engine import Engine, GenerationParams, drafting
from entmtp.heads import DraftHeads
from entmtp.scheduler import DraftSignals, PlainPolicy, Selection, Signals, StaticPolicy, StepChoice
from entmtp.trees import Tree, chain, full
from fixtures import ring, ring_order, tiny, tiny_model
from reference import ids_of, random_prompts, run

TREES = (chain(2), full(3, 2), full(2, 4))
SAMPLINGS = (Sampling(), Sampling(0.9, seed=3), Sampling(1.4, top_k=3, top_p=0.8, seed=4))
PARAMS = [GenerationParams(20, SAMPLINGS[index % 3]) for index in range(4)]
PROMPTS = random_prompts(4, 8, longest=12, seed=7)


class Watched(ConfidentPolicy):
    """Keeps its selections."""

    def begin(self, seed: int) -> Selection:
        self.begun = [*getattr(self, "begun", []), ConfidentSelection(self)]
        return self.begun[-1]


def heads(kind: str) -> DraftHeads:
    texts = run(Engine(tiny()), [([token], GenerationParams(24)) for token in range(8)])
    return overfit_heads(tiny(), kind, tuple(ids_of(texts)))


@torch.no_grad()
def root_of(text: list[int]) -> tuple[float, float]:
    """Of the distribution behind a text, in one forward of `transformers`."""
    logits = tiny_model()(torch.tensor([text]), use_cache=False).logits[0, -1].double()
    p = logits.softmax(-1)
    return float(p.max()), float(-(p * p.log()).sum())


@pytest.mark.parametrize("acceptance", ["exact", "typical"])
@pytest.mark.parametrize("size", [1, 4])
def test_signals_are_of_the_root_and_of_the_last_step(acceptance: str, size: int) -> None:
    policy = Watched(TREES)
    engine = Engine(tiny(), heads("hydra"), policy, acceptance=acceptance, max_batch_size=size)
    results = run(engine, zip(PROMPTS, PARAMS, strict=True))
    accepted = set()
    for prompt, result, selection in zip(PROMPTS, results, policy.begun, strict=True):
        said = 1  # the prompt's own token is the first root
        for step, seen in enumerate(selection.signals):
            if step:
                said += 1 + seen.num_accepted
            assert seen.num_steps == step
            # The root is the last of what is said: its distribution is behind the ones before.
            probability, entropy = root_of([*prompt, *result.token_ids[: said - 1]])
            assert seen.root_probability == pytest.approx(probability, abs=1e-4)
            assert seen.root_entropy == pytest.approx(entropy, abs=1e-3)
            accepted.add(seen.num_accepted)
    assert len(accepted) > 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_heads_are_shown_level_by_level(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown is what a whole draft of that step would say, as far as it has come."""
    policy = Watched([full(2, 3)], stop=0.2, cut=0.05)
    own = heads(kind)
    whole: list[list[float]] = []
    fill = type(own).fill

    def spied(self: DraftHeads, draft, context, buffers):  # type: ignore[no-untyped-def]
        whole.append(own_draft(context, draft.ids[:, 0].clone(), buffers).log_probs[0].tolist())
        return fill(self, draft, context, buffers)

    def own_draft(context, root_ids, buffers):  # type: ignore[no-untyped-def]
        draft = drafting.Draft.empty(root_ids, buffers)
        for _ in fill(own, draft, context, buffers):
            pass
        return draft

    monkeypatch.setattr(type(own), "fill", spied)
    Engine(tiny(), own, policy).generate([1, 2], GenerationParams(40))
    [selection] = policy.begun
    assert len(whole) == len(selection.cuts)
    assert {draft.tree.depth for draft, _ in selection.cuts} >= {1, 3}
    for expected, (draft, chosen) in zip(whole, selection.cuts, strict=True):
        assert draft.log_probs == tuple(expected[: draft.tree.num_nodes])
        assert set(chosen.paths) <= set(draft.tree.paths)
    assert any(chosen != draft.tree for draft, chosen in selection.cuts)
    assert {draft.tree.depth for draft in selection.drafts} == {1, 2}


def test_hydra_drafts_no_level_that_nobody_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """The random heads' first level is nothing to build on; a batch goes on while one wants to."""
    own = random_heads(tiny(), "hydra")
    asked: list[int] = []
    features = type(own).features

    def counted(self: DraftHeads, head: int, *rest: torch.Tensor) -> torch.Tensor:
        asked.append(head)
        return features(self, head, *rest)

    monkeypatch.setattr(type(own), "features", counted)
    for stop, depths in ((1.1, {0}), (0.0, {0, 1, 2, 3})):
        asked.clear()
        policy = Watched([chain(4)], stop=stop, cut=0.0)
        results = run(Engine(tiny(), own, policy), zip(PROMPTS, PARAMS, strict=True))
        assert set(asked) == depths
        for selection in policy.begun:
            whole = [draft.tree.depth for draft, _ in selection.cuts]
            assert max(whole) == len(depths)
        # Only what was verified is counted.
        num_nodes = sum(tree.num_draft_tokens for each in policy.begun for _, tree in each.cuts)
        assert sum(result.stats.num_draft_tokens for result in results) == num_nodes


class OfTwoMinds(Watched):
    """Every second sequence stops at once."""

    def begin(self, seed: int) -> Selection:
        selection = super().begin(seed)
        if len(self.begun) % 2:
            selection.goes_on = lambda signals, draft: False  # type: ignore[method-assign]
        return selection


@pytest.mark.parametrize("kind", KINDS)
def test_who_stops_is_not_carried_on_by_others(kind: str) -> None:
    policy = OfTwoMinds([full(2, 3)], stop=0.0, cut=0.0)
    results = run(Engine(tiny(), heads(kind), policy), zip(PROMPTS, PARAMS, strict=True))
    assert ids_of(results) == ids_of(run(Engine(tiny()), zip(PROMPTS, PARAMS, strict=True)))
    for index, selection in enumerate(policy.begun):
        depths = [draft.tree.depth for draft, _ in selection.cuts]
        assert max(depths) == (3 if index % 2 else 1)


def test_who_does_not_ask_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nobody asked for this")

    monkeypatch.setattr(signals, "root_signals", refuse)
    monkeypatch.setattr(StepChoice, "goes_on", refuse)
    monkeypatch.setattr(DraftSignals, "confidences", property(refuse))
    for policy in (PlainPolicy(), StaticPolicy(full(2, 2))):
        assert len(Engine(tiny(), heads("hydra"), policy).generate([1]).token_ids) > 5
    with pytest.raises(AssertionError, match="nobody asked"):
        Engine(tiny(), heads("hydra"), ConfidentPolicy(TREES)).generate([1])


class Halving(StaticPolicy):
    """Sees a whole draft, and takes its first level."""

    def begin(self, seed: int) -> Selection:
        self.begun = FirstLevel(self.trees[0])
        return self.begun


class FirstLevel(Selection):
    reads_draft = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.num_confidences: list[int] = []

    def widest(self, signals: Signals) -> Tree:
        return self._tree

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        self.num_confidences.append(len(draft.confidences))
        return draft.tree.truncate(1)


def test_choosing_after_the_draft_needs_no_questions_between_levels() -> None:
    policy = Halving(chain(3))
    result = Engine(tiny(), heads("medusa"), policy).generate([1], GenerationParams(12))
    assert result.token_ids == Engine(tiny()).generate([1], GenerationParams(12)).token_ids
    # Drafts are as deep as may still be said.
    assert policy.begun.num_confidences[0] == 3
    assert result.stats.num_draft_tokens == len(policy.begun.num_confidences)


class Chain(StaticPolicy):
    """Drafts a whole tree, and has the best children of best children verified."""

    def begin(self, seed: int) -> Selection:
        return BestChildren(self.trees[0])


class BestChildren(Selection):
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def widest(self, signals: Signals) -> Tree:
        return self._tree

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        return chain(draft.tree.depth)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 2])
def test_a_chosen_part_carries_its_own_tokens(size: int, kind: str) -> None:
    """Heads that are never wrong: all that was chosen is accepted."""
    own = exact_heads(ring(), ring_order(12), kind)
    engine = Engine(ring(), own, Chain(full(3, 3)), max_batch_size=size)
    requests = [([3], GenerationParams(13)), ([5], GenerationParams(11))]
    for result, num_tokens in zip(run(engine, requests), (13, 11), strict=True):
        stats = result.stats
        assert stats.num_accepted_tokens == stats.num_draft_tokens == num_tokens - 1 - 3
        assert stats.num_drafts == 3


class Mixed(Watched):
    """Every second sequence wants to see nothing, and gets the whole tree."""

    def begin(self, seed: int) -> Selection:
        watched = super().begin(seed)
        if len(self.begun) % 2:
            return watched
        self.blind = [*getattr(self, "blind", []), Blind(self.trees[0])]
        return self.blind[-1]


class Blind(Selection):
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.signals: list[Signals] = []

    def widest(self, signals: Signals) -> Tree:
        self.signals.append(signals)
        return self._tree

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        raise AssertionError("it did not ask to be asked")

    def choose(self, signals: Signals, draft: DraftSignals) -> Tree:
        assert draft.log_probs == ()
        return draft.tree


def test_each_sees_what_it_asked_for_whatever_the_company() -> None:
    policy = Mixed([full(2, 3)], stop=1.1)
    results = run(Engine(tiny(), heads("hydra"), policy), zip(PROMPTS, PARAMS, strict=True))
    assert ids_of(results) == ids_of(run(Engine(tiny()), zip(PROMPTS, PARAMS, strict=True)))
    for selection in policy.blind:
        assert all(isnan(seen.root_probability) for seen in selection.signals)
    for selection in policy.begun[::2]:
        assert not any(isnan(seen.root_entropy) for seen in selection.signals)
        assert max(draft.tree.depth for draft, _ in selection.cuts) == 1
    # The others' drafts are as deep as ever.
    assert results[1].stats.num_draft_tokens > 5 * results[1].stats.num_drafts
