"""The paper's live calibration and its replay grow the same trees with the same scores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from draft_heads import KINDS, hidden_states, overfit_heads
from entmtp.calibrate.greedy import grow, replay_rollout
from entmtp.calibrate.rollout import live_rollout
from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.trees import full
from fixtures import tiny

NUM_TOKENS = 24
PROMPTS = ([3, 1, 6], [2, 5])


def ranks_of(heads: DraftHeads, prompt: list[int], answer: list[int]) -> np.ndarray:
    """Of each answer token: the true rank of each of the next ones, given the text before it."""
    ids = torch.tensor([*prompt, *answer])
    context = heads.context(hidden_states(tiny(), ids[None]))[0]
    ranks = np.full((len(answer), heads.num_draft_heads), MISS, np.int32)
    for start in range(len(answer)):
        # The heads draft from the hidden state in front of the root.
        place = len(prompt) + start - 1
        for head in range(min(heads.num_draft_heads, len(answer) - start - 1)):
            path = heads.embed(ids[place + 1 : place + head + 2]) if heads.needs_path else None
            features = heads.features(
                head, context[place], None if path is None else path.flatten()
            )
            logits = heads.logits(head, features)
            ranks[start, head] = int((logits > logits[ids[place + head + 2]]).sum())
    return ranks


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_live_and_replayed_growth_agree(kind: str, temperature: float) -> None:
    sampling = Sampling(temperature, seed=5)
    params = GenerationParams(NUM_TOKENS, sampling, ignore_eos=True)
    answers = [list(Engine(tiny()).generate(prompt, params).token_ids) for prompt in PROMPTS]
    with torch.enable_grad():
        heads = overfit_heads(tiny(), kind, ((6, *answers[0][:18]),))
    rows = [ranks_of(heads, *row) for row in zip(PROMPTS, answers, strict=True)]
    trace = RankTrace(
        np.concatenate(rows),
        full(1, 1),
        np.zeros((2 * NUM_TOKENS, 2), np.float32),
        np.ones(2 * NUM_TOKENS, np.float32),
        np.zeros(2 * NUM_TOKENS, np.float32),
        np.array([0, NUM_TOKENS, 2 * NUM_TOKENS]),
        np.array([3, 2]),
        ("code", "code"),
    )
    live = live_rollout(tiny(), heads, PROMPTS, NUM_TOKENS, sampling)
    grown = grow(live, 3, max_drafts=5)
    assert grown == grow(replay_rollout(trace), 3, max_drafts=5)
    scores = [one.biased_mean_accepted for one in grown]
    assert len(set(scores)) > 2
