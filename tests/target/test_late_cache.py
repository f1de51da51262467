"""The caches that are written when rows are kept, against the one written by every forward."""

from __future__ import annotations

import random

import pytest
import torch

from entmtp.target.cache import KVCache, LayerShape
from entmtp.target.runtimes.block_cache import BlockCache
from entmtp.target.runtimes.blocks import BLOCK_SIZE, SUM_WIDTH
from entmtp.target.runtimes.late_cache import BLOCK, LateCache, rows_for, runs_of
from runtimes import committed

LAYOUT = (LayerShape(2, 4, 6), LayerShape(1, 4, 4), LayerShape(2, 4, 6))
CPU = torch.device("cpu")


WITH_ONES = [shape._replace(value_dim=shape.value_dim + SUM_WIDTH) for shape in LAYOUT]


class Triplets:
    """All caches under the same verbs."""

    def __init__(self) -> None:
        self.caches = [
            KVCache.allocate(LAYOUT, 1, 4, dtype=torch.float32, device=CPU),
            LateCache.allocate(LAYOUT, 1, 4, dtype=torch.float32, device=CPU),
            BlockCache.allocate(WITH_ONES, 1, 0, dtype=torch.float32, device=CPU),
        ]

    def forward(self, rows: int, stop: int) -> list[KVCache]:
        """New rows for the first `stop` sequences; the views that saw them."""
        plain, *late = (cache.view(0, stop) for cache in self.caches)
        plain.reserve(max(plain.lengths) + rows)
        new = [
            tuple(torch.randn(stop, s.num_kv_heads, rows, d) for d in (s.key_dim, s.value_dim))
            for s in LAYOUT
        ]
        for layer, (keys, values) in enumerate(new):
            plain.update(keys, values, layer)
        groups = [[0, 2], [1]]
        for cache in late:
            cache.offer(
                [tuple(torch.stack([new[i][p] for i in g]) for p in (0, 1)) for g in groups]
            )
        return [plain, *late]

    def check(self) -> None:
        plain, late, blocks = self.caches
        assert plain.lengths == late.lengths == blocks.lengths
        assert late.capacity >= max(late.lengths)
        in_blocks = [committed(blocks.view(r, r + 1)) for r in range(blocks.batch_size)]
        for layer in range(len(LAYOUT)):
            for part, one in enumerate(plain.layer(layer)):
                other = late.layer(layer)[part]
                for row, length in enumerate(plain.lengths):
                    third = in_blocks[row][layer + part * len(LAYOUT)]
                    assert torch.equal(one[row, :, :length], other[row, :, :length])
                    assert torch.equal(one[row, :, :length], third[..., : one.shape[-1]])
                    assert (third[..., one.shape[-1] :] == 1).all()  # and none in keys


@pytest.mark.parametrize("seed", range(5))
def test_the_same_rows_are_committed(seed: int) -> None:
    dice, triplets = random.Random(seed), Triplets()
    torch.manual_seed(seed)
    for _ in range(40):
        size = triplets.caches[0].batch_size
        match dice.choice(["keep", "keep", "keep", "advance", "truncate", "copy", "add"]):
            case "keep":
                stop, rows = dice.randint(1, size), dice.randint(1, 9)
                views = triplets.forward(rows, stop)
                slots = [[0, *sorted(dice.sample(range(1, rows), rows // 2))] for _ in range(stop)]
                counts = [dice.randint(0, len(s)) for s in slots]
                for view in views:
                    view.keep(torch.tensor(slots), counts)
            case "advance":
                rows = dice.randint(1, 2 * BLOCK)
                for view in triplets.forward(rows, 1):
                    view.advance([rows])
            case "truncate":
                row = dice.randrange(size)
                length = dice.randint(0, triplets.caches[0].lengths[row])
                for cache in triplets.caches:
                    cache.truncate(row, length)
            case "copy":
                source, aim = dice.randrange(size), dice.randrange(size)
                for cache in triplets.caches:
                    cache.copy_row(source, aim)
            case "add":
                for cache in triplets.caches if size < 4 else ():
                    cache.add_row()
        triplets.check()


def test_memory_follows_the_longest_sequence_both_ways() -> None:
    cache = LateCache.allocate(LAYOUT, 2, BLOCK, dtype=torch.float32, device=CPU)
    cache.reserve(10_000)  # a hint, not a need
    assert cache.capacity == BLOCK
    long = 3 * BLOCK + 1
    new = [
        (torch.zeros(2, 2, 2, long, 4), torch.zeros(2, 2, 2, long, 6)),
        (torch.zeros(1, 2, 1, long, 4), torch.zeros(1, 2, 1, long, 4)),
    ]
    cache.offer(new)
    cache.keep(torch.arange(long).expand(2, -1), [long, 5])
    assert cache.capacity == 4 * BLOCK
    cache.truncate(0, 0)
    assert cache.capacity == BLOCK
    assert cache.lengths == [0, 5]


def test_finished_blocks_have_memory_and_nothing_else_does() -> None:
    cache = BlockCache.allocate(WITH_ONES, 2, 0, dtype=torch.float32, device=CPU)
    new = [
        (torch.ones(2, 2, 2, 300, 4), torch.ones(2, 2, 2, 300, 6)),
        (torch.ones(1, 2, 1, 300, 4), torch.ones(1, 2, 1, 300, 4)),
    ]
    cache.offer(new)
    cache.advance([BLOCK_SIZE - 1, 5])
    assert cache.capacity == 0
    cache.advance([1, 0])
    assert cache.capacity == BLOCK_SIZE
    cache.advance([2 * BLOCK_SIZE + 3, 0])
    assert cache.capacity == 3 * BLOCK_SIZE
    positions = torch.tensor([3 * [388], 3 * [128]])
    seen = cache.visibility(torch.ones(2, 3, 3, dtype=torch.bool), positions)
    assert (seen.unfinished.flatten(1) == 0).tolist() == [3 * [True], 3 * [False]]
    assert seen.inside.flatten(1).tolist() == [3 * [1.0], 3 * [0.0]]
    assert (seen.mask[:, 0, 0] == 0).sum(-1).tolist() == [3 + 3, 5 + 3]
    cache.truncate(0, 7)
    assert cache.capacity == 0
    assert cache.lengths == [7, 5]


def test_what_is_visible_is_the_same_kept_or_made_anew() -> None:
    """A tree of the same tensor finds the last step's mask; one of its copies does not."""
    rng = random.Random(0)
    trees = [torch.ones(1, rows, rows, dtype=torch.bool).tril() for rows in (1, 3)]
    for kind, layout in ((LateCache, LAYOUT), (BlockCache, WITH_ONES)):
        kept, anew = (
            kind.allocate(layout, 1, 0, dtype=torch.float32, device=CPU) for _ in range(2)
        )
        new = [
            (torch.zeros(2, 1, 2, 4, 4), torch.zeros(2, 1, 2, 4, 6)),
            (torch.zeros(1, 1, 1, 4, 4), torch.zeros(1, 1, 1, 4, 4)),
        ]
        for _ in range(400):
            among, count = rng.choice(trees), rng.randrange(4)
            length = kept.length
            shorter = rng.randrange(length + 1) if rng.random() < 0.02 else length
            for cache in (kept, anew):
                cache.truncate(0, shorter)
                cache.offer(new)
                cache.advance([count])
            positions = kept.length + torch.arange(4)[None]
            for one, other in zip(
                seen(kept, among, positions), seen(anew, among.clone(), positions), strict=True
            ):
                assert torch.equal(one, other)


def seen(
    cache: LateCache, among: torch.Tensor, positions: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """What new rows see, of either kind of cache."""
    if isinstance(cache, BlockCache):
        return cache.visibility(among, positions)
    return (cache.mask(among),)


def test_rows_side_by_side_are_one_run() -> None:
    slots = torch.tensor([[0, 1, 3, 4], [0, 2, 9, 9], [0, 0, 0, 0]])
    assert list(runs_of([4, 2, 0], slots)) == [[(0, 2), (3, 5)], [(0, 1), (2, 3)], []]
    assert list(runs_of([4, 2], None)) == [[(0, 4)], [(0, 2)]]


def test_blocks_grow_with_the_length() -> None:
    lengths = range(1, 100_000, 77)
    assert all(n <= rows_for(n) <= n + max(BLOCK, n / 8) for n in lengths)
    assert len({rows_for(n) for n in lengths}) < 100
