"""A live run accepts what the rank trace of its own text says it must (DESIGN D7).

The trace comes from the forward that heads are trained with: whole rows, true paths. So drafting
and training mean the same by head, path and position.
"""

from __future__ import annotations

import pytest
import torch

from draft_heads import KINDS, hidden_states, overfit_heads
from entmtp.engine import Engine, GenerationParams, TokenEvent
from entmtp.heads import DraftHeads
from entmtp.scheduler import StaticPolicy
from entmtp.trees import Tree, chain, full
from fixtures import tiny

NUM_TOKENS = 60
TREES = {
    "chain": chain(4),
    "bushy": full(3, 4),
    "odd": Tree.from_paths(
        [(1,), (0,), (1, 2), (1, 0), (0, 4), (1, 0, 1), (0, 4, 0), (1, 0, 1, 0)]
    ),
}


def rank_trace(heads: DraftHeads, ids: torch.Tensor) -> list[list[int]]:
    """`[t][k]`: the true rank of x_{t+k+2} under head k, given the text before it."""
    context = heads.context(hidden_states(tiny(), ids[None]))[0]
    trace: list[list[int]] = [[] for _ in ids]
    for head in range(heads.num_draft_heads):
        for place in range(len(ids) - head - 2):
            path = heads.embed(ids[place + 1 : place + head + 2]) if heads.needs_path else None
            features = heads.features(
                head, context[place], None if path is None else path.flatten()
            )
            logits = heads.logits(head, features)
            trace[place].append(int((logits > logits[ids[place + head + 2]]).sum()))
    return trace


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_replay_is_the_live_run(kind: str, name: str) -> None:
    prompt, tree = [3, 1, 6], TREES[name]
    params = GenerationParams(NUM_TOKENS)
    text = Engine(tiny()).generate(prompt, params).token_ids
    with torch.enable_grad():
        heads = overfit_heads(tiny(), kind, ((6, *text[:30]),))
    events = list(Engine(tiny(), heads, StaticPolicy(tree)).stream(prompt, params))
    live = [len(event.token_ids) for event in events if isinstance(event, TokenEvent)][1:-1]
    trace = rank_trace(heads, torch.tensor([*prompt, *text]))
    paths, place, replay = set(tree.paths), len(prompt) - 1, []
    for _ in live:
        ranks = tuple(trace[place])
        depth = max(d for d in range(len(ranks) + 1) if ranks[:d] in paths)
        replay.append(depth + 1)
        place += depth + 1
    assert live == replay
    assert len(set(live)) > 1
