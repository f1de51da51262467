"""May this policy run with these heads? Knows: trees and heads. Does not know: sequences."""

from __future__ import annotations

from entmtp.errors import BadInput
from entmtp.heads import DraftHeads, check_tree
from entmtp.scheduler import TreePolicy


def drafts(policy: TreePolicy) -> bool:
    """Whether it ever picks more than the root."""
    return any(tree.depth for tree in policy.trees)


def check_policy(policy: TreePolicy, heads: DraftHeads | None) -> None:
    """Refuse a policy that cannot run.

    Raises:
        BadInput: it drafts, and there are no heads.
        TreeError: it has a tree that the heads cannot fill.
    """
    if not drafts(policy):
        return
    if heads is None:
        raise BadInput(f"policy {policy.name} needs draft heads; pass heads or use plain")
    for tree in policy.trees:
        check_tree(heads, tree)
