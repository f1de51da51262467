"""Rank traces made up for tests: by hand, and by chance with honest confidences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from entmtp.calibrate.trace import MISS, RankTrace
from entmtp.scheduler.times import StepTimes
from entmtp.trees import Tree, full

RISING = StepTimes((1, 8, 16, 64), (1.0, 1.2, 1.5, 4.0), (0.0, 0.02, 0.04, 0.06), 0.1)
"""Each row more costs time"""
FLAT = StepTimes((1, 64), (1.0, 1.0), (0.0, 0.0, 0.0, 0.0), 0.0)
"""Only the number of steps counts"""


def by_hand(*rows: Sequence[Sequence[int]], kinds: Sequence[str] = ()) -> RankTrace:
    """Ranks of each start of each row; the heads are equally sure of everything."""
    ranks = np.concatenate([np.array(row, dtype=np.int32) for row in rows])
    wide = full(2, ranks.shape[1])
    starts = np.cumsum([0, *(len(row) for row in rows)])
    return RankTrace(
        ranks,
        wide,
        np.tile(np.log(np.where(np.arange(wide.num_nodes) == 0, 1, 0.5)), (len(ranks), 1)).astype(
            np.float32
        ),
        np.full(len(ranks), 0.5, np.float32),
        np.full(len(ranks), 1.0, np.float32),
        starts.astype(np.int64),
        np.full(len(rows), 7, np.int64),
        tuple(kinds) or ("code",) * len(rows),
    )


def by_chance(
    num_rows: int = 16, length: int = 60, num_heads: int = 3, seed: int = 0, width: int = 4
) -> RankTrace:
    """Text of slowly changing ease: rank r has chance h·0.7·0.3^r, and the head says so."""
    generator = np.random.default_rng(seed)
    total = num_rows * length
    ease = np.repeat(generator.uniform(0.05, 0.98, (num_rows, -(-length // 6))), 6, axis=1)
    ease = ease[:, :length].reshape(total)
    known = np.clip(ease[:, None] + generator.uniform(-0.1, 0.1, (total, num_heads)), 0.05, 0.98)
    near = generator.geometric(0.7, (total, num_heads)) - 1
    far = generator.integers(10, 60, (total, num_heads))
    ranks = np.where(generator.random((total, num_heads)) < known, near, far).astype(np.int32)
    behind = length - 1 - np.tile(np.arange(length), num_rows)
    ranks[np.arange(num_heads) >= behind[:, None]] = MISS
    wide = full(width, num_heads)
    log_probs = np.zeros((total, wide.num_nodes), np.float32)
    for node, path in enumerate(wide.paths[1:], start=1):
        log_probs[:, node] = np.log(0.7 * known[:, len(path) - 1]) + path[-1] * np.log(0.3)
    return RankTrace(
        ranks,
        wide,
        log_probs,
        generator.uniform(0.2, 1.0, total).astype(np.float32),
        generator.uniform(0.0, 3.0, total).astype(np.float32),
        np.arange(0, total + 1, length, dtype=np.int64),
        np.full(num_rows, 9, np.int64),
        tuple(("code", "maths")[row % 2] for row in range(num_rows)),
    )


def trees_of(*lists: Sequence[Sequence[int]]) -> tuple[Tree, ...]:
    return tuple(Tree.from_paths(paths) for paths in lists)
