"""The acceptors against walks in plain Python: any trees, ties between logits, equal siblings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st

from acceptances import rows_of
from entmtp.decode import (
    Draw,
    ExactAcceptor,
    Sampler,
    Sampling,
    TypicalAcceptor,
)
from entmtp.trees import Tree, TreeBuffers, tree_buffers

VOCAB = 5
EPSILON, DELTA = 0.09, 0.3
"""Hydra's defaults (METHOD §2.4)."""


def closed(paths: list[tuple[int, ...]]) -> Tree:
    return Tree.from_paths({path[:end] for path in paths for end in range(1, len(path) + 1)})


trees = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=4).map(tuple)).map(closed)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.sampled_from([0, 2]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 9),
)


@dataclass(frozen=True)
class Case:
    """A verified batch: its hidden states are its logits."""

    buffers: TreeBuffers
    samplings: list[Sampling]
    logits: torch.Tensor  # [B, T, V]
    ids: torch.Tensor  # [B, T]
    first: torch.Tensor  # [B]

    @property
    def draw(self) -> Draw:
        sampler = Sampler(self.samplings, torch.device("cpu"))
        return Draw(lambda hidden: hidden, sampler, self.first[:, None] - 1)

    def children(self, row: int, parent: int) -> list[int]:
        parents, valid = self.buffers.parents[row].tolist(), self.buffers.valid[row].tolist()
        return [slot for slot in range(1, len(parents)) if valid[slot] and parents[slot] == parent]

    def choice(self, row: int, slot: int, depth: int) -> int:
        """The target's own token behind a node; of equal logits the lowest id."""
        scores = self.logits[row, slot].tolist()
        if self.samplings[row].is_greedy:
            return scores.index(max(scores))
        alone = Sampler([self.samplings[row]], torch.device("cpu"))
        return int(alone(self.logits[row, slot][None], self.first[row : row + 1] + depth))


@st.composite
def cases(draw: st.DrawFn, *, with_ties: bool) -> Case:
    """With ties: few different logits, and siblings that may carry the same token."""
    rows = draw(st.lists(st.tuples(trees, samplings), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    buffers = tree_buffers(tuple(tree for tree, _ in rows), torch.device("cpu"))
    shape = (len(rows), buffers.num_slots)
    logits = 2 * torch.randn(*shape, VOCAB, generator=generator)
    ids = torch.randint(VOCAB, shape, generator=generator)
    if with_ties:
        logits = logits.round()
    else:
        # A node's children differ, as ranks of one distribution do.
        order = torch.rand(*shape, VOCAB, generator=generator).argsort(-1)
        for level in buffers.levels:
            for row in range(shape[0]):
                for place, slot in enumerate(level.slots[row].tolist()):
                    if slot == buffers.num_slots:  # padding
                        continue
                    parent = int(buffers.parents[row, slot])
                    ids[row, slot] = order[row, parent, int(level.ranks[row, place])]
    return Case(buffers, [one for _, one in rows], logits, ids, torch.arange(3, 3 + len(rows)))


def exact_walk(case: Case, row: int) -> tuple[list[int], list[int]]:
    """Slots and tokens of one sequence, said one after the other."""
    slots, tokens = [0], [case.choice(row, 0, 0)]
    while True:
        heirs = [
            slot for slot in case.children(row, slots[-1]) if int(case.ids[row, slot]) == tokens[-1]
        ]
        if not heirs:
            return slots, tokens
        slots.append(heirs[0])
        tokens.append(case.choice(row, slots[-1], len(slots) - 1))


def typical_walk(case: Case, row: int) -> tuple[list[int], list[int]]:
    """The longest path of likely tokens, as drawn from; of equally long ones the likeliest."""
    sampler = Sampler([case.samplings[row]], torch.device("cpu"))
    log_p = sampler.scores(case.logits[row : row + 1], None)[0].double().log_softmax(-1)
    entropy = torch.special.entr(log_p.exp()).sum(-1)
    limits = torch.clamp(DELTA * torch.exp(-entropy), max=EPSILON).log()
    best = (0, 0.0, [0])
    paths = [([0], 0.0)]
    while paths:
        slots, score = paths.pop()
        best = max(best, (len(slots) - 1, score, slots))
        for child in case.children(row, slots[-1]):
            gain = float(log_p[slots[-1], case.ids[row, child]])
            if gain > float(limits[slots[-1]]):
                paths.append(([*slots, child], score + gain))
    slots = best[2]
    said = [int(case.ids[row, slot]) for slot in slots[1:]]
    return slots, [*said, case.choice(row, slots[-1], len(slots) - 1)]


@given(cases(with_ties=True), st.booleans())
def test_the_exact_acceptor_walks_as_told(case: Case, early_exit: bool) -> None:
    acceptance = ExactAcceptor(early_exit)(case.logits, case.ids, case.buffers, case.draw)
    assert rows_of(acceptance) == [exact_walk(case, row) for row in range(len(case.samplings))]


@given(cases(with_ties=False))
def test_the_typical_acceptor_takes_the_longest_likely_path(case: Case) -> None:
    acceptor = TypicalAcceptor()
    got = rows_of(acceptor(case.logits, case.ids, case.buffers, case.draw))
    for row, sampling in enumerate(case.samplings):
        # Greedy sequences stay exact.
        walk = exact_walk if sampling.is_greedy else typical_walk
        assert got[row] == walk(case, row)
