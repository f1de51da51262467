"""Sampled tokens have exactly the target's distribution, and tests that wrong rules fail.

MARKOV is enumerated by hand; a right rule stays near a total variation of 0.007 at 20,000 draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch

from draft_heads import random_heads
from entmtp.decode import ExactAcceptor, Sampler, Sampling
from entmtp.decode.history import Past
from entmtp.engine import Engine, GenerationParams
from entmtp.scheduler import StaticPolicy
from entmtp.trees import ROOT, Tree, chain, full
from fixtures import markov
from markov_walk import (
    ACCEPTED,
    BONUS,
    EIGHT_ROW,
    REJECTED,
    ROW,
    best_first,
    joint_tv,
    rolled,
    steps,
    tv,
    walk_markov,
    warped,
    worst_first,
)
from reference import run
from wrong_rules import WRONG, Rule, RuleAcceptor, eagle

LIMIT = 0.02
NUM_DRAWS = 20_000
NUM_SEQUENCES = 100_000  # so that tokens of every origin are among them often enough
THREE = full(3, 1)
# Trees, and the ranking of the drafter that fills them.
TREES = {
    "root": (ROOT, worst_first),
    "chain-2": (chain(2), best_first),
    "three children": (THREE, worst_first),
    "depth 2": (Tree.from_paths([(0,), (2,), (2, 1), (2, 3), (0, 0)]), worst_first),
}


def exact() -> ExactAcceptor:
    return ExactAcceptor(early_exit=True)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("name", TREES)
def test_L05_three_tokens_have_the_targets_distribution(name: str, temperature: float) -> None:
    sampling, (tree, ranking) = Sampling(temperature), TREES[name]
    walked = walk_markov(rolled(ROW), tree, ranking, sampling, exact, NUM_SEQUENCES)
    draws, p = steps(walked, 4), warped(ROW, sampling)
    assert joint_tv(draws[:, :3], p) < LIMIT
    for place in range(3):
        assert tv(draws[:NUM_DRAWS, place], p) < LIMIT
        for token in range(4):
            same_start = walked.roots == token
            assert tv(draws[same_start, place][:NUM_DRAWS], p) < LIMIT
    # Whatever became of the token before, the next one is drawn as ever.
    for origin in [BONUS] if name == "root" else [ACCEPTED, REJECTED, BONUS]:
        behind = draws[:, 1:][walked.origin[:, :-1] == origin][:NUM_DRAWS]
        assert len(behind) == NUM_DRAWS
        assert tv(behind, p) < LIMIT


def first_token_tv(rule: Rule, temperature: float = 1.0) -> float:
    """How far a rule's first token lies from the target's, with three rank-chosen children."""
    q = 0.25 * rolled(ROW.flip(0)) + 0.75 * rolled(ROW).roll(1, -1)
    walked = walk_markov(
        rolled(ROW),
        THREE,
        worst_first,
        Sampling(temperature),
        lambda: RuleAcceptor(rule, temperature, q),
        NUM_DRAWS,
    )
    return tv(steps(walked, 4)[:, 0], warped(ROW, Sampling(temperature)))


@pytest.mark.parametrize("rule", WRONG)
def test_L05_wrong_rules_are_found_out(rule: str) -> None:
    assert first_token_tv(WRONG[rule]) > 2 * LIMIT


def test_L05_another_right_rule_is_not() -> None:
    assert first_token_tv(eagle) < LIMIT


@dataclass(frozen=True)
class Changed:
    """A sampler that is shown something else than it was given."""

    sampler: Sampler
    change: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

    takes_largest = False

    def race(self, logits: torch.Tensor, positions: torch.Tensor, _: Past) -> torch.Tensor:
        return self.sampler.race(*self.change(logits, positions))


def at_temperature_one(sampler: Sampler, rows: Sequence[Sampling]) -> Changed:
    """Verification that forgets the temperature."""
    return Changed(sampler, lambda logits, places: (logits * rows[0].temperature, places))


def with_the_same_noise(sampler: Sampler, rows: Sequence[Sampling]) -> Changed:
    """Noise that does not know the position."""
    return Changed(sampler, lambda logits, places: (logits, torch.zeros_like(places)))


def with_the_noise_of_the_step(sampler: Sampler, rows: Sequence[Sampling]) -> Changed:
    """Noise that knows only whether a token is even or odd."""
    return Changed(sampler, lambda logits, places: (logits, places % 2))


@pytest.mark.parametrize(
    "change", [at_temperature_one, with_the_same_noise, with_the_noise_of_the_step]
)
def test_L05_wrong_draws_are_found_out(
    change: Callable[[Sampler, Sequence[Sampling]], Changed],
) -> None:
    sampling = Sampling(0.5)
    walked = walk_markov(rolled(ROW), chain(2), best_first, sampling, exact, NUM_DRAWS, change)
    assert joint_tv(steps(walked, 4), warped(ROW, sampling)) > 4 * LIMIT


def test_L05_through_the_engine() -> None:
    target = markov(rolled(ROW))
    heads = random_heads(target, "hydra", num_draft_heads=3)
    engine = Engine(target, heads, StaticPolicy(full(2, 3)), max_batch_size=50)
    results = run(
        engine,
        [([seed % 4], GenerationParams(400, Sampling(1.0, seed=seed))) for seed in range(50)],
    )
    tokens = torch.tensor([[seed % 4, *result.token_ids] for seed, result in enumerate(results)])
    draws = (tokens[:, 1:] - tokens[:, :-1]) % 4
    assert draws.numel() == NUM_DRAWS
    assert tv(draws.flatten(), ROW.double()) < LIMIT
    pairs = torch.stack([draws[:, :-1].flatten(), draws[:, 1:].flatten()], 1)
    assert joint_tv(pairs, ROW.double()) < LIMIT


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "num_kept"),
    [
        (0.5, 0, 1.0, 8),
        (1.0, 2, 1.0, 2),
        (1.0, 0, 0.6, 3),
        (0.5, 2, 1.0, 2),
        (0.5, 0, 0.6, 2),
        (0.5, 4, 0.6, 2),
        (1.0, 2, 0.6, 2),
        (0.5, 2, 0.6, 1),  # of two tokens the first is more than 0.6
        (0.5, 0, 0.9, 4),
    ],
)
def test_L06_filters_and_temperature_are_those_of_plain_decoding(
    temperature: float, top_k: int, top_p: float, num_kept: int
) -> None:
    sampling = Sampling(temperature, top_k, top_p)
    p = warped(EIGHT_ROW, sampling)
    assert int((p > 0).sum()) == num_kept
    tree = Tree.from_paths([(7,), (6,), (0,), (7, 7), (7, 6), (6, 6)])
    walked = walk_markov(rolled(EIGHT_ROW), tree, worst_first, sampling, exact, NUM_DRAWS)
    draws = steps(walked, 8)
    assert not bool((p[draws] == 0).any())
    for place in range(draws.shape[1]):
        assert tv(draws[:, place], p) < LIMIT
