"""Many sequences of a few tokens through one acceptor, on a MARKOV model, without an engine.

Dimension key: N sequences · T tree slots · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from acceptances import as_tensors
from draft_heads import hidden_states
from entmtp.decode import Acceptor, Draw, Sampler, Sampling
from entmtp.target import TargetModel
from entmtp.trees import Tree, TreeBuffers, tree_buffers
from fixtures import markov

ROW = torch.tensor([0.5, 0.3, 0.15, 0.05])
EIGHT_ROW = torch.tensor([0.31, 0.23, 0.16, 0.11, 0.08, 0.06, 0.03, 0.02])
ACCEPTED, REJECTED, BONUS = range(3)
"""How a token came about: drafted; drawn where no child had it; drawn behind a leaf."""


def rolled(row: torch.Tensor) -> torch.Tensor:
    """Transitions `[V, V]` whose row t is `row`, shifted by t: no token is like another."""
    return torch.stack([row.roll(token) for token in range(len(row))])


class Walk(NamedTuple):
    tokens: torch.Tensor  # [N, num_tokens]
    origin: torch.Tensor  # [N, num_tokens]
    roots: torch.Tensor  # [N] the token before the first


class Drafts:
    """Trees of tokens behind every root, by a fixed ranking of each token's successors."""

    def __init__(self, tree: Tree, rankings: torch.Tensor) -> None:  # [V, V]
        vocab_size = rankings.shape[0]
        self.buffers = tree_buffers((tree,), torch.device("cpu"))
        self.ids = torch.zeros(vocab_size, tree.num_nodes, dtype=torch.long)  # [V, T]
        self.ids[:, 0] = torch.arange(vocab_size)
        for slot in range(1, tree.num_nodes):
            parent = tree.parents[slot]
            self.ids[:, slot] = rankings[self.ids[:, parent], tree.paths[slot][-1]]
        is_parent = torch.zeros(tree.num_nodes, dtype=torch.bool)
        is_parent[list(tree.parents[1:])] = True
        self.is_leaf = ~is_parent


def spread(buffers: TreeBuffers, count: int) -> TreeBuffers:
    """The buffers of a lone tree, for `count` sequences."""
    wide = {
        name: getattr(buffers, name).expand(count, *getattr(buffers, name).shape[1:])
        for name in ("parents", "depths", "valid", "mask", "ancestors")
    }
    parents = [*buffers.parents_on_host] * count
    return TreeBuffers(buffers.depth, buffers.num_slots, **wide, levels=(), parents_on_host=parents)


def walk(
    target: TargetModel,
    drafts: Drafts,
    acceptor: Acceptor,
    sampler: Sampler,
    count: int,
    num_tokens: int,
) -> Walk:
    """`num_tokens` tokens of each of `count` sequences, a tree for each step."""
    vocab_size = target.vocab_size
    states = hidden_states(target, torch.arange(vocab_size)[:, None])[:, 0]  # [V, H]
    buffers = spread(drafts.buffers, count)
    rows = torch.arange(count)
    first = rows % vocab_size
    root, said = first, torch.zeros_like(first)
    room = num_tokens + buffers.depth + 1
    tokens, origin = torch.zeros(count, room).long(), torch.zeros(count, room).long()
    while bool((said < num_tokens).any()):
        draft_ids = drafts.ids[root]
        draw = Draw(target.logits, sampler, said[:, None])
        found = acceptor(states[draft_ids], draft_ids, buffers, draw)
        slots, ids, num_accepted = as_tensors(found)
        last = slots[rows, num_accepted]
        ending = torch.where(drafts.is_leaf[last], BONUS, REJECTED)
        root = ids[rows, num_accepted]
        for place in range(ids.shape[1]):
            (real,) = torch.nonzero((place <= num_accepted) & (said < num_tokens), as_tuple=True)
            where = said[real] + place
            tokens[real, where] = ids[real, place]
            origin[real, where] = torch.where(place < num_accepted[real], ACCEPTED, ending[real])
        # Those that are done stand still: what they would say later is not looked at.
        said = torch.where(said < num_tokens, said + num_accepted + 1, said)
    return Walk(tokens[:, :num_tokens], origin[:, :num_tokens], first)


def warped(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The distribution that `sampling` makes of `row`, by hand. No two entries are equal."""
    p = row.double() ** (1 / sampling.temperature)
    order = p.sort(descending=True).indices
    if sampling.top_k:
        p[order[sampling.top_k :]] = 0
    p = p / p.sum()
    if sampling.top_p < 1:
        before = p[order].cumsum(0) - p[order]
        p[order[before >= sampling.top_p]] = 0
    return p / p.sum()


def samplings(count: int, template: Sampling) -> list[Sampling]:
    """The same, with a seed each."""
    return [replace(template, seed=seed) for seed in range(count)]


def steps(walked: Walk, vocab_size: int) -> torch.Tensor:
    """`[N, num_tokens]`: how far each token lies behind the one before it, round the ring.

    Of `rolled` transitions these are independent draws from the row itself.
    """
    before = torch.cat([walked.roots[:, None], walked.tokens[:, :-1]], 1)
    return (walked.tokens - before) % vocab_size


def tv(draws: torch.Tensor, p: torch.Tensor) -> float:
    """Total variation between the frequencies of `draws` `[n]` and `p` `[V]`."""
    frequency = torch.bincount(draws, minlength=len(p)).double() / len(draws)
    return float((frequency - p).abs().sum() / 2)


def joint_tv(draws: torch.Tensor, p: torch.Tensor) -> float:
    """The same over whole sequences `[n, k]` of independent draws."""
    vocab_size, code, together = len(p), torch.zeros(len(draws)).long(), torch.ones(1).double()
    for place in range(draws.shape[1]):
        code = code * vocab_size + draws[:, place]
        together = (together[:, None] * p).flatten()
    return tv(code, together)


Ranking = Callable[[torch.Tensor], torch.Tensor]
"""Transitions `[V, V]` to every token's successors in the drafter's order."""


def worst_first(transitions: torch.Tensor) -> torch.Tensor:
    """A drafter as far from the target as can be."""
    return transitions.argsort(-1)


def best_first(transitions: torch.Tensor) -> torch.Tensor:
    return transitions.argsort(-1, descending=True)


def walk_markov(
    transitions: torch.Tensor,
    tree: Tree,
    ranking: Ranking,
    template: Sampling,
    make_acceptor: Callable[[], Acceptor],
    count: int,
    change: Callable[[Sampler, Sequence[Sampling]], Any] = lambda sampler, rows: sampler,
) -> Walk:
    target = markov(transitions)
    rows = samplings(count, template)
    sampler = change(Sampler(rows, target.device), rows)
    return walk(target, Drafts(tree, ranking(transitions)), make_acceptor(), sampler, count, 5)
