"""Finalists as plain JSON values, and what they are called where people read.

Knows: a bank. Does not know: pages, pictures, terminals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from entmtp.scheduler import TreeBank

Numbers = dict[str, Any]


def live_numbers(bank: TreeBank) -> list[Numbers]:
    """Finalists, the best static tree first: over it, by replay and by the clock."""
    found = []
    for one in bank.timing.live:
        tree = bank.trees[one.trees[0]].tree if one.trees else None
        found.append(
            {
                "policy": one.policy,
                "num_nodes": None if tree is None else tree.num_nodes,
                "depth": None if tree is None else tree.depth,
                "promised": one.promised,
                "measured": one.measured._asdict(),
                "num_prompts": one.num_prompts,
            }
        )
    return found


def finalist_name(one: Mapping[str, Any]) -> str:
    """Of one of the `live_numbers`: `throughput`, or `static (5 nodes, 2 deep)`."""
    if one["num_nodes"] is None:
        return str(one["policy"])
    return f"{one['policy']} ({one['num_nodes']} nodes, {one['depth']} deep)"
