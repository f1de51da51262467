"""The geometry of a draft tree: a prefix-closed set of rank paths.

Knows: ranks, parents, depths. Does not know: models, tokens, tensors.

A path is the tuple of ranks from the root: `(0, 1)` is the second-best child of the best child.
A rank is the 0-based place of a child in its parent's top-k.

        root          paths: (), (0,), (1,), (0, 0), (0, 1)
        /  \\          node:  0   1     2     3       4
       0    1         parents: 0  0  0  1  1       depths: 0  1  1  2  2
      / \\
     0   1
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from entmtp.errors import TreeError

Path = tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """A draft tree. Node ids are breadth-first: the root is 0, parents come before children.

    Build one with `Tree.from_paths`, which checks it.
    """

    paths: tuple[Path, ...]
    """Every node's path, the root's `()` first, ordered by depth and then by ranks."""

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> Tree:
        """A tree of the given paths; the root need not be named, the order is free.

        Raises:
            TreeError: a path is not made of ranks, occurs twice, or has no parent in the tree.
        """
        given = [_as_path(path) for path in paths]
        nodes = {path for path in given if path}
        if len(nodes) != sum(1 for path in given if path):
            twice = next(path for path in given if given.count(path) > 1)
            raise TreeError(f"path {list(twice)} stands twice; name every node once")
        for path in sorted(nodes, key=_breadth_first):
            if len(path) > 1 and path[:-1] not in nodes:
                raise TreeError(
                    f"path {list(path)} has no parent {list(path[:-1])} in the tree; add the parent"
                )
        return cls(((), *sorted(nodes, key=_breadth_first)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Made once: a step looks a tree up several times."""
        return hash(self.paths)

    @property
    def num_nodes(self) -> int:
        """Nodes with the root: the rows of one verification."""
        return len(self.paths)

    @property
    def num_draft_tokens(self) -> int:
        return len(self.paths) - 1

    @cached_property
    def depth(self) -> int:
        """Edges from the root to the deepest node; 0 for the root alone."""
        return len(self.paths[-1])

    @cached_property
    def depths(self) -> tuple[int, ...]:
        return tuple(len(path) for path in self.paths)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Each node's parent; the root is its own."""
        index = {path: node for node, path in enumerate(self.paths)}
        return tuple(index[path[:-1]] for path in self.paths)

    @cached_property
    def num_best(self) -> int:
        """How deep the best children of best children reach: the paths (0,), (0, 0) and so on."""
        best = {path for path in self.paths if not any(path)}
        return len(best) - 1

    @cached_property
    def max_rank(self) -> int:
        """The largest rank; -1 for the root alone."""
        return max((max(path) for path in self.paths if path), default=-1)

    def truncate(self, max_depth: int) -> Tree:
        """The nodes no deeper than `max_depth`: what fits the end of a context or an answer."""
        return self if max_depth >= self.depth else _truncated(self, max(0, max_depth))


@lru_cache(maxsize=1024)
def _truncated(tree: Tree, max_depth: int) -> Tree:
    return Tree(tuple(path for path in tree.paths if len(path) <= max_depth))


def _breadth_first(path: Path) -> tuple[int, Path]:
    return len(path), path


def _as_path(path: Sequence[int]) -> Path:
    ranks_only = isinstance(path, (list, tuple)) and all(
        isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in path
    )
    if not ranks_only:
        raise TreeError(f"{path!r} is not a path; expected a list of ranks such as [0, 2]")
    return tuple(path)


ROOT = Tree(((),))
"""The root alone: plain decoding."""
