"""Some nodes of a tree that are a tree themselves: a cut made for one step, named by node ids.

Knows: trees. Does not know: who cuts, tensors.
"""

from __future__ import annotations

from typing import NamedTuple

from entmtp.errors import TreeError
from entmtp.trees.tree import Tree


class Part(NamedTuple):
    """Nodes of a whole tree, each with its parent. Cheap to make: nothing is sorted or hashed."""

    whole: Tree
    nodes: tuple[int, ...]
    """Ids in `whole`, ascending, the root's 0 first"""

    @property
    def num_nodes(self) -> int:
        """With the root: the rows of one verification."""
        return len(self.nodes)

    @property
    def num_draft_tokens(self) -> int:
        return len(self.nodes) - 1

    @property
    def depth(self) -> int:
        return self.whole.depths[self.nodes[-1]]

    @property
    def tree(self) -> Tree:
        """The same as a tree of its own: slow, for whoever wants to look at it."""
        paths = self.whole.paths
        return Tree(tuple(paths[node] for node in self.nodes))

    def check(self) -> None:
        """
        Raises:
            TreeError: a node is not in the whole, is out of order, or lacks its parent.
        """
        nodes, parents = self.nodes, self.whole.parents
        is_whole = bool(nodes) and nodes[0] == 0 and nodes[-1] < len(parents)
        if is_whole and list(nodes) == sorted(set(nodes)):
            lonely = {parents[node] for node in nodes}.difference(nodes)
            if not lonely:
                return
        raise TreeError(
            f"a policy chose the nodes {list(nodes)} of a draft of {len(parents)}; choose ids in"
            " ascending order, the root's 0 first, each with its parent"
        )
