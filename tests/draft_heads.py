"""Draft heads for tests: random, overfit, exact, and told what to say.

Dimension key: B rows · S positions · K draft heads · H hidden size · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch
from torch.nn.functional import cross_entropy

from entmtp.engine import Engine, GenerationParams
from entmtp.heads import (
    Draft,
    DraftHeads,
    HeadsConfig,
    build_heads,
    prefix_shape,
    start_from_target,
)
from entmtp.target import KVCache, TargetModel
from entmtp.target.masks import causal_among
from entmtp.trees import TreeBuffers
from fixtures import after, output_rows, sure, tiny
from reference import ids_of, run

KINDS = ("medusa", "hydra", "hydra++")


def new_heads(target: TargetModel, kind: str, num_draft_heads: int = 4) -> DraftHeads:
    config = HeadsConfig(
        kind=kind,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_draft_heads=num_draft_heads,
        num_layers=1,
        draft_vocab_size=target.vocab_size,
        output="own",
        prefix=prefix_shape(target) if kind == "hydra++" else None,
    )
    heads = build_heads(config)
    heads.bind(target)
    return heads.eval()


@lru_cache
def random_heads(
    target: TargetModel, kind: str, num_draft_heads: int = 4, seed: int = 1
) -> DraftHeads:
    """Heads that guess no better than a die."""
    heads = new_heads(target, kind, num_draft_heads)
    generator = torch.Generator().manual_seed(seed)
    for weight in heads.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    return heads.to(target.dtype).requires_grad_(False)


def exact_heads(
    target: TargetModel, following: Sequence[int], kind: str, num_draft_heads: int = 4
) -> DraftHeads:
    """Heads of RING or SCRIPT that are right about every token: blocks are the identity."""
    heads = new_heads(target, kind, num_draft_heads)
    for head in range(num_draft_heads):
        rows = output_rows(sure(after(following, head + 2)))
        heads.output_weight.data[head].copy_(rows)
    if kind == "hydra++":
        _silence(heads)
    return heads.requires_grad_(False)


def _silence(heads: DraftHeads) -> None:
    """Make the prefix layer hand each hidden state through."""
    weights = dict(heads.named_parameters())
    for name, weight in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data.zero_()


@lru_cache
def overfit_heads(
    target: TargetModel, kind: str, texts: tuple[tuple[int, ...], ...], num_steps: int = 80
) -> DraftHeads:
    """Heads trained on what the target says anyway, until they know it by heart."""
    heads = new_heads(target, kind)
    torch.manual_seed(0)
    for name, weight in heads.named_parameters():
        if name.startswith("prefix") and weight.ndim > 1:
            weight.data.normal_(0.0, 0.1)
    start_from_target(heads, target)
    ids = torch.tensor(texts)
    hidden = hidden_states(target, ids)
    optimiser = torch.optim.Adam(heads.parameters(), lr=1e-2)
    for _ in range(num_steps):
        optimiser.zero_grad()
        loss = sum(_head_losses(heads, hidden, ids), torch.zeros(()))
        loss.backward()
        optimiser.step()
    return heads.requires_grad_(False)


def heads_by_heart(
    target: TargetModel, kind: str, speaker: TargetModel | None = None
) -> DraftHeads:
    """Heads that know what the target, or its like on another runtime, says after each token."""
    starts = range(target.vocab_size)
    results = run(Engine(speaker or target), [([token], GenerationParams(40)) for token in starts])
    texts = zip(starts, ids_of(results), strict=True)
    return overfit_heads(target, kind, tuple((token, *ids) for token, ids in texts))


def _head_losses(heads: DraftHeads, hidden: torch.Tensor, ids: torch.Tensor) -> list[torch.Tensor]:
    context, embedded = heads.context(hidden), None
    losses = []
    for head in range(heads.num_draft_heads):
        places = ids.shape[1] - head - 2
        if heads.needs_path:
            embedded = [heads.embed(ids[:, d : d + places]) for d in range(1, head + 2)]
        path = None if embedded is None else torch.cat(embedded, -1)
        logits = heads.logits(head, heads.features(head, context[:, :places], path))
        losses.append(cross_entropy(logits.flatten(0, 1), ids[:, head + 2 :].flatten()))
    return losses


@torch.no_grad()
def hidden_states(target: TargetModel, ids: torch.Tensor) -> torch.Tensor:
    """Hidden states `[B, S, H]` of whole rows `[B, S]`, in one forward."""
    batch, length = ids.shape
    cache = target.new_cache(batch, length)
    positions = torch.arange(length).expand(batch, -1)
    return target.forward(ids, positions, causal_among(batch, length, ids.device), cache)


Guess = Callable[[int, tuple[int, ...]], int]
"""`(position of the root, path) -> token id` of a node."""


class ToldHeads(DraftHeads):
    """Says what a function tells it; for one sequence at a time.

    Where it stands is counted from what it observes, as Hydra++ does with its cache.
    """

    def __init__(self, target: TargetModel, guess: Guess, num_draft_heads: int = 4) -> None:
        sizes = (target.hidden_size, target.vocab_size, num_draft_heads, 1, target.vocab_size)
        super().__init__(HeadsConfig("told", *sizes, output="target"))
        self._guess = guess
        self._num_observed = 0
        self.observed: list[torch.Tensor] = []

    def new_cache(self, batch_size: int, capacity: int) -> KVCache | None:
        self._num_observed = 0
        self.observed = []
        return super().new_cache(batch_size, capacity)

    def observe(
        self, hidden: torch.Tensor, cache: KVCache | None, counts: Sequence[int]
    ) -> torch.Tensor:
        assert len(counts) == 1, "told heads serve one sequence"
        self._num_observed += counts[0]
        self.observed.append(hidden[0, : counts[0]].clone())
        return super().observe(hidden, cache, counts)

    def features(self, head: int, context: torch.Tensor, path: torch.Tensor | None) -> torch.Tensor:
        return context

    def fill(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> Iterator[int]:
        for path, slot in _slots_of(buffers).items():
            draft.ids[0, slot] = self._guess(self._num_observed, path)
        yield from range(1, buffers.depth + 1)


def _slots_of(buffers: TreeBuffers) -> dict[tuple[int, ...], int]:
    """The slots of a lone tree by path, without the root."""
    paths: dict[int, tuple[int, ...]] = {0: ()}
    for level in buffers.levels:
        for slot, rank in zip(level.slots[0].tolist(), level.ranks[0].tolist(), strict=True):
            paths[slot] = (*paths[int(buffers.parents[0, slot])], rank)
    return {path: slot for slot, path in paths.items() if path}


def contexts_of(heads: DraftHeads, fast: DraftHeads) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Contexts by heads with a prefix layer and by their like, of pieces of two uneven texts."""
    ids = torch.randint(8, (2, 300), generator=torch.Generator().manual_seed(2))
    hidden = hidden_states(tiny(), ids)
    caches = heads.new_cache(2, 8), fast.new_cache(2, 8)
    at = [0, 0]
    for counts in ([7, 7], [1, 1], [3, 2], [1, 5], [140, 90], [5, 5]):
        pieces = torch.zeros(2, max(counts), heads.hidden_size)
        for row, count in enumerate(counts):
            pieces[row, :count] = hidden[row, at[row] : at[row] + count]
            at[row] += count
        slow, quick = (
            h.observe(pieces, cache, counts) for h, cache in zip((heads, fast), caches, strict=True)
        )
        yield slow, quick
