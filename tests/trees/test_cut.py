"""A part of a drafted batch has the buffers that its tree would have on its own."""

from __future__ import annotations

import random
from dataclasses import fields

import pytest
import torch

from entmtp.errors import TreeError
from entmtp.trees import ROOT, Part, Tree, chain, cut_buffers, full, medusa_63, tree_buffers

CPU = torch.device("cpu")
TREES = (medusa_63(), full(3, 3), chain(4), Tree.from_paths([(2,), (2, 1), (5,), (2, 1, 0)]))


def some_part(tree: Tree, draw: random.Random) -> Part:
    kept = [0]
    for node in range(1, tree.num_nodes):
        if tree.parents[node] in kept and draw.random() < 0.6:
            kept.append(node)
    return Part(tree, tuple(kept))


@pytest.mark.parametrize("min_slots", [1, 20, 70])
def test_buffers_of_parts_are_those_of_the_trees(min_slots: int) -> None:
    draw = random.Random(3)
    for _ in range(20):
        parts = [some_part(tree, draw) for tree in TREES]
        got, places = cut_buffers(parts, CPU, min_slots)
        expected = tree_buffers([part.tree for part in parts], CPU, min_slots)
        for field in fields(expected):
            if field.name != "levels":
                a, b = getattr(got, field.name), getattr(expected, field.name)
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, field.name
        for row, part in zip(places, parts, strict=True):
            assert row == [*part.nodes, *[0] * (got.num_slots - part.num_nodes)]


def test_a_part_says_what_its_tree_says() -> None:
    draw = random.Random(4)
    for tree in (*TREES, ROOT):
        part = some_part(tree, draw)
        part.check()
        same = part.tree
        assert Tree.from_paths(same.paths) == same
        assert part.num_nodes == same.num_nodes
        assert part.num_draft_tokens == same.num_draft_tokens
        assert part.depth == same.depth


@pytest.mark.parametrize(
    "nodes", [(), (1,), (0, 5, 4), (0, 1, 1), (0, 4), (0, 99), (0, -1), (0, 1, 4, 12)]
)
def test_what_is_no_part_is_refused(nodes: tuple[int, ...]) -> None:
    with pytest.raises(
        TreeError, match=r"a policy chose the nodes .* of a draft of 40; choose ids"
    ):
        Part(full(3, 3), nodes).check()
