"""Rollouts of a living model for the greedy construction: hours where a trace takes seconds.

Knows: a target, heads, prompts, and one step of the engine. Does not know: scores.

A step verifies the union of a tree and its frontier, and keeps what the tree alone would have
kept: the acceptor's word is cut to the tree, as the paper's calibration cuts it (METHOD §1.3).

Dimension key: B = 1 · T slots · D depth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from entmtp.calibrate.greedy import Rollout
from entmtp.calibrate.trace import MISS
from entmtp.calibrate.walk import Ranks, reach
from entmtp.decode import Acceptance, Draw, ExactAcceptor, Sampling
from entmtp.engine.batch import Batch
from entmtp.engine.choosing import Choosing
from entmtp.heads import DraftHeads
from entmtp.scheduler import Signals, StaticPolicy, StepChoice
from entmtp.target.model import TargetModel
from entmtp.trees import Path, Tree, TreeBuffers


def live_rollout(
    target: TargetModel,
    heads: DraftHeads,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    sampling: Sampling,
) -> Rollout:
    """Rollouts that answer the prompts, one after another, in `max_tokens` tokens each.

    Ends of sequence are passed over.
    """

    def rollout(tree: Tree, union: Tree) -> Ranks:
        acceptor = _CutAcceptor(ExactAcceptor(early_exit=False), tree)
        for prompt in prompts:
            batch = Batch(target, heads, acceptor, 1)
            capacity = len(prompt) + max_tokens + union.num_nodes
            root = batch.join(prompt, Choosing(sampling), capacity, False).token_id
            left = max_tokens - 1
            while left > 0:
                acceptor.union = union.truncate(left - 1)
                choice = StepChoice(StaticPolicy(union).begin(0), Signals(0, 0), left - 1)
                [said] = batch.step([choice], [root]).token_ids
                root, left = said[-1], left - len(said)
        return _as_ranks(acceptor.seen, heads.num_draft_heads)

    return rollout


class _CutAcceptor:
    """Notes how far the union was on the true path, and keeps what the tree has of it."""

    def __init__(self, inner: ExactAcceptor, tree: Tree) -> None:
        self._inner = inner
        self._tree = tree
        self.union = tree
        self.seen: list[Path] = []

    def __call__(
        self, hidden: torch.Tensor, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw
    ) -> Acceptance:
        whole = self._inner(hidden, draft_ids, buffers, target)
        assert isinstance(whole, Acceptance), "an acceptor without early exit"
        path = self.union.paths[int(whole.slots[0, int(whole.num_accepted)])]
        self.seen.append(path)
        kept = int(reach(_as_ranks([path], max(len(path), 1)), self._tree).depths[0])
        places = torch.arange(whole.slots.shape[1], device=hidden.device).clamp(max=kept)
        return whole._replace(
            slots=whole.slots[:, places], num_accepted=torch.full_like(whole.num_accepted, kept)
        )


def _as_ranks(paths: Sequence[Path], num_draft_heads: int) -> Ranks:
    ranks = np.full((len(paths), num_draft_heads), MISS, dtype=np.int32)
    for row, path in zip(ranks, paths, strict=True):
        row[: len(path)] = path
    return ranks
