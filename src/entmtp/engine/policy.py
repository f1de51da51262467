"""May this policy run with these heads, on this target?

Knows: trees, heads, and whether the target takes trees. Does not know: sequences.
"""

from __future__ import annotations

from entmtp.errors import BadInput, TreeError
from entmtp.heads import DraftHeads, check_tree
from entmtp.scheduler import TreePolicy
from entmtp.target.model import TargetModel


def drafts(policy: TreePolicy) -> bool:
    """Whether it ever picks more than the root."""
    return any(tree.depth for tree in policy.trees)


def check_policy(
    policy: TreePolicy,
    heads: DraftHeads | None,
    target: TargetModel,
    *,
    are_left_out: bool = False,
) -> None:
    """Refuse a policy that cannot run.

    Args:
        are_left_out: there would be heads, but the engine's own policy has no use for them.

    Raises:
        ModelRefused: it drafts, and the target was let in without trees.
        BadInput: it drafts, and there are no heads.
        TreeError: it has no tree, or one that the heads cannot fill.
    """
    if not policy.trees:
        raise TreeError(f"policy {policy.name} has no trees; give at least one, if only the root")
    if not drafts(policy):
        return
    if heads is None and are_left_out:
        raise BadInput(
            f"policy {policy.name} needs draft heads, and an engine whose own policy never drafts"
            " leaves its heads out; make the engine with a policy that drafts, and give plain"
            " requests the plain one"
        )
    if heads is None:
        raise BadInput(f"policy {policy.name} needs draft heads; pass heads or use plain")
    target.demand_trees(policy.name)
    for tree in policy.trees:
        check_tree(heads, tree)
