"""How good heads are: ranks on held-out rows, and the acceptance lengths that follow.

Knows: heads, rows, named trees. Does not know: optimiser, checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from entmtp.heads import DraftHeads, StaticTree
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import Split, load_batch, pack
from entmtp.train.model import LabelMap, batch_ranks
from entmtp.train.shards import FeatureReader, RowRef
from entmtp.trees import Tree, tree_by_name
from entmtp.trees.replay import (
    RankRows,
    best_static_tree,
    mean_acceptance_length,
    remaining_tokens,
)

TOP_LIMITS = (1, 3, 10)
TREE_SIZES = (4, 16, 64)
"""Nodes (root included) of the trees that every judgement replays."""
STATIC_SIZES = (2, 3, 4, 5, 6, 8, 12, 16, 20, 24, 32, 48, 64)
"""Nodes (root included) of the trees that are stored beside the heads."""


class JudgingRows(NamedTuple):
    """Batches of rows to count paths on, and of held-out rows to judge by."""

    seen: list[list[RowRef]]
    held_out: list[list[RowRef]]


def judging_rows(split: Split, config: TrainConfig) -> JudgingRows:
    """A fair sample of both sides of a split: its rows are ordered by a hash."""
    limit = config.max_validation_rows
    return JudgingRows(
        pack(split.train[:limit], config.batch_tokens),
        pack(split.validation[:limit], config.batch_tokens),
    )


def judge(
    heads: DraftHeads,
    rows: JudgingRows,
    reader: FeatureReader,
    labels: LabelMap,
    config: TrainConfig,
) -> dict[str, Any]:
    """Per-head shares in the top 1, 3, 10 and mean acceptance lengths, on held-out rows.

    Trees found by counting are counted on training rows and judged on held-out ones.
    """
    heads.eval()
    seen = trace_rows(heads, rows.seen, reader, labels)
    held_out = trace_rows(heads, rows.held_out or rows.seen, reader, labels)
    trees = judged_trees(seen, heads.num_draft_heads, config.judge_nodes)
    lengths = {name: mean_acceptance_length(held_out, tree) for name, tree in trees.items()}
    shares = top_shares(held_out, TOP_LIMITS)
    return {
        "judged": lengths[f"best-{config.judge_nodes}"],
        "mean_acceptance_length": lengths,
        "seen_mean_acceptance_length": {
            name: mean_acceptance_length(seen, tree) for name, tree in trees.items()
        },
        "top_shares": {
            f"top-{limit}": [head[i] for head in shares] for i, limit in enumerate(TOP_LIMITS)
        },
        "num_rows": len(held_out.lengths),
        "num_tokens": len(held_out.ranks),
        "median_row": float(np.median(held_out.lengths)),
    }


def judged_trees(seen: RankRows, num_draft_heads: int, judge_nodes: int) -> dict[str, Tree]:
    """Named trees, cut to the depth that the heads reach, and the best ones by counting.

    `best-16` has 16 nodes, its root included; `chain-4` and `medusa-63` are named for their drafts.
    """
    trees = {
        name: tree_by_name(name).truncate(num_draft_heads) for name in ("chain-4", "medusa-63")
    }
    for size in sorted({*TREE_SIZES, judge_nodes}):
        trees[f"best-{size}"] = best_static_tree(seen.ranks, size)
    return trees


def static_trees(seen: RankRows, held_out: RankRows) -> list[StaticTree]:
    """The best tree of each size by counting on `seen`, with its figure on `held_out`."""
    trees = [best_static_tree(seen.ranks, num_nodes) for num_nodes in STATIC_SIZES]
    return [StaticTree(tree, mean_acceptance_length(held_out, tree)) for tree in trees]


def trace_rows(
    heads: DraftHeads, batches: Iterable[Sequence[RowRef]], reader: FeatureReader, labels: LabelMap
) -> RankRows:
    """Ranks of all rows."""
    return RankRows.of(
        [
            ranks
            for refs in batches
            for ranks in batch_ranks(heads, load_batch(reader, refs, heads.device), labels)
        ]
    )


def top_shares(rows: RankRows, limits: Sequence[int]) -> list[list[float]]:
    """For each head, the share of its labels that its best 1, 3, … proposals hold."""
    remaining = remaining_tokens(rows.row_starts)
    shares = []
    for head, ranks in enumerate(rows.ranks.T):
        values = ranks[remaining > head]  # the last head + 1 starts of a row have no label
        shares.append([float((values < limit).mean()) if len(values) else 0.0 for limit in limits])
    return shares
