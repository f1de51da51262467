"""May this policy run with these heads, on this target?

Knows: trees, heads, and whether the target takes trees. Does not know: sequences.
"""

from __future__ import annotations

from entmtp.errors import BadInput
from entmtp.heads import DraftHeads, check_tree
from entmtp.scheduler import TreePolicy
from entmtp.target.model import TargetModel


def drafts(policy: TreePolicy) -> bool:
    """Whether it ever picks more than the root."""
    return any(tree.depth for tree in policy.trees)


def check_policy(policy: TreePolicy, heads: DraftHeads | None, target: TargetModel) -> None:
    """Refuse a policy that cannot run.

    Raises:
        ModelRefused: it drafts, and the target was let in without trees.
        BadInput: it drafts, and there are no heads.
        TreeError: it has a tree that the heads cannot fill.
    """
    if not drafts(policy):
        return
    if heads is None:
        raise BadInput(f"policy {policy.name} needs draft heads; pass heads or use plain")
    target.demand_trees(policy.name)
    for tree in policy.trees:
        check_tree(heads, tree)
