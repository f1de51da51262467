"""The acceptors against a walk in plain Python, over batches of random trees."""

from __future__ import annotations

import pytest
import torch

from acceptances import rows_of
from entmtp.decode import (
    Draw,
    ExactAcceptor,
    Sampler,
    Sampling,
    TypicalAcceptor,
)
from entmtp.decode.filters import make_warper
from entmtp.decode.noise import gumbel_noise
from entmtp.trees import ROOT, Tree, TreeBuffers, chain, full, tree_buffers

CPU = torch.device("cpu")
VOCAB = 6
TREES = (
    ROOT,
    full(3, 2),
    chain(4),
    Tree.from_paths([(2,), (0,), (2, 1), (2, 3), (2, 3, 0), (2, 3, 5), (0, 4), (0, 4, 4)]),
    full(6, 2),
)
SAMPLINGS = [Sampling(0.9 * (row % 2), row % 3, seed=row) for row in range(len(TREES))]
FIRST = torch.tensor([4, 10, 3, 77, 5])


class Case:
    """A batch of trees, drafts without equal siblings, and hidden states that are logits."""

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.buffers = tree_buffers(TREES, CPU)
        shape = (len(TREES), self.buffers.num_slots)
        self.logits = 2 * torch.randn(*shape, VOCAB, generator=generator)
        self.ids = torch.randint(VOCAB, shape, generator=generator)
        for row in range(shape[0]):
            for parent in range(shape[1]):
                children = self.children(row, parent)
                self.ids[row, children] = torch.randperm(VOCAB, generator=generator)[
                    : len(children)
                ]
        sampler = Sampler(SAMPLINGS, CPU)
        self.draw = Draw(lambda hidden: hidden, sampler, FIRST[:, None] - 1)

    def children(self, row: int, parent: int) -> list[int]:
        is_child = self.buffers.valid[row] & (self.buffers.parents[row] == parent)
        is_child[0] = False
        return [int(slot) for slot in is_child.nonzero()[:, 0]]

    def choice(self, row: int, slot: int, depth: int) -> int:
        """The target's own token behind a node."""
        draw = Sampler([SAMPLINGS[row]], CPU)
        return int(draw(self.logits[row, slot][None], FIRST[row : row + 1] + depth))


def walk(case: Case, row: int) -> tuple[list[int], list[int]]:
    """Slots and tokens of one sequence, said one after the other."""
    slots, tokens = [0], [case.choice(row, 0, 0)]
    while True:
        children = {int(case.ids[row, slot]): slot for slot in case.children(row, slots[-1])}
        if tokens[-1] not in children:
            return slots, tokens
        slots.append(children[tokens[-1]])
        tokens.append(case.choice(row, slots[-1], len(slots) - 1))


@pytest.mark.parametrize("early_exit", [True, False])
def test_the_exact_acceptor_walks_as_told(early_exit: bool) -> None:
    lengths = set()
    for seed in range(60):
        case = Case(seed)
        acceptance = ExactAcceptor(early_exit)(case.logits, case.ids, case.buffers, case.draw)
        expected = [walk(case, row) for row in range(len(TREES))]
        assert rows_of(acceptance) == expected
        lengths |= {len(slots) for slots, _ in expected}
    assert lengths >= {1, 2, 3}


@pytest.mark.parametrize("rows_at_once", [0, 1000])
def test_whoever_finds_the_largest_logits(rows_at_once: int) -> None:
    """A runtime's own way to them is asked, for whole trees or for visited nodes, and no logits."""

    def refused(hidden: torch.Tensor) -> torch.Tensor:
        raise AssertionError("nobody needs logits")

    def largest(hidden: torch.Tensor) -> list[int]:
        ids: list[int] = hidden.argmax(-1).flatten().tolist()
        return ids

    sampler = Sampler([Sampling()] * len(TREES), CPU)
    for seed in range(20):
        case = Case(seed)
        draw = case.draw._replace(sampler=sampler, rows_at_once=rows_at_once)
        expected = ExactAcceptor(True)(case.logits, case.ids, case.buffers, draw)
        draw = draw._replace(logits=refused, largest_logits=largest)
        found = ExactAcceptor(True)(case.logits, case.ids, case.buffers, draw)
        assert rows_of(found) == rows_of(expected)
        assert found[2:] == (None, None)


def test_padding_is_never_accepted() -> None:
    """Padding slots hang on the root and carry ids; that the target says one of them is nothing."""
    case = Case(0)
    said = case.choice(0, 0, 0)
    case.ids[0, 1:] = said  # the first tree is the root alone: all of it is padding
    acceptance = ExactAcceptor(True)(case.logits, case.ids, case.buffers, case.draw)
    assert rows_of(acceptance)[0] == ([0], [said])
    typical = TypicalAcceptor()
    acceptance = typical(case.logits, case.ids, case.buffers, case.draw)
    assert rows_of(acceptance)[0] == ([0], [said])


def typical_walk(case: Case, row: int) -> tuple[list[int], list[int]]:
    """The longest path of likely tokens; of equally long ones the likeliest."""
    log_p = make_warper([SAMPLINGS[row]], CPU)(case.logits[row][None])[0].log_softmax(-1)
    entropy = -(log_p.exp() * log_p).nan_to_num(0.0).sum(-1)
    limits = (0.3 * (-entropy).exp()).clamp(max=0.09).log()
    best: tuple[int, float, list[int]] = (0, 0.0, [0])
    paths = [([0], 0.0)]
    while paths:
        slots, score = paths.pop()
        best = max(best, (len(slots) - 1, score, slots))
        for child in case.children(row, slots[-1]):
            gain = float(log_p[slots[-1], case.ids[row, child]])
            if gain > limits[slots[-1]]:
                paths.append(([*slots, child], score + gain))
    slots = best[2]
    tokens = [int(case.ids[row, slot]) for slot in slots[1:]]
    return slots, [*tokens, case.choice(row, slots[-1], len(slots) - 1)]


def test_the_typical_acceptor_does_as_hydra_does() -> None:
    acceptor = TypicalAcceptor()
    for seed in range(60):
        case = Case(seed)
        got = rows_of(acceptor(case.logits, case.ids, case.buffers, case.draw))
        for row, sampling in enumerate(SAMPLINGS):
            # Greedy sequences stay exact.
            expected = walk(case, row) if sampling.is_greedy else typical_walk(case, row)
            assert got[row] == expected


def test_only_visited_nodes_are_given_logits() -> None:
    case, seen = Case(1), []

    def logits(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(hidden.shape))
        return hidden

    ExactAcceptor(False)(case.logits, case.ids, case.buffers, case.draw._replace(logits=logits))
    assert seen == [(len(TREES), VOCAB)] * (case.buffers.depth + 1)


def test_draws_are_keyed_by_the_absolute_position() -> None:
    buffers: TreeBuffers = tree_buffers((chain(1),), CPU)
    hidden, seed = torch.zeros(1, 2, VOCAB), 9
    draw = Draw(lambda h: h, Sampler([Sampling(1.0, seed=seed)], CPU), torch.tensor([[29]]))
    noise = gumbel_noise(torch.tensor([seed, seed]), torch.tensor([30, 31]), VOCAB)
    first, second = noise.argmax(-1).tolist()
    accepted = ExactAcceptor(True)(hidden, torch.tensor([[0, first]]), buffers, draw)
    assert rows_of(accepted) == [([0, 1], [first, second])]
