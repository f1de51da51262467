"""Trees by name, by rule, or from a file.

Knows: names. Does not know: what files look like (`forms.py`), which tree is good for what.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path as FilePath

from entmtp.errors import TreeError
from entmtp.trees.forms import eagle_tree, read_tree
from entmtp.trees.tree import ROOT, Path, Tree

MAX_NODES = 1024
"""A larger tree by name is a slip of the keyboard; a file may hold any."""

_MEDUSA_63: dict[Path, int] = {
    (): 10,
    (0,): 10,
    (1,): 7,
    (2,): 3,
    (3,): 2,
    **{(rank,): 1 for rank in range(4, 10)},
    (0, 0): 10,
    (0, 1): 3,
    (0, 2): 2,
    **{(0, rank): 1 for rank in range(3, 8)},
    (1, 0): 2,
    (2, 0): 1,
    (0, 0, 0): 2,
}
"""Children of each inner node of `mc_sim_7b_63`, the default of Medusa and Hydra: 63 drafts,
10/28/23/2 by depth (METHOD §2.2)."""


def medusa_63() -> Tree:
    return Tree.from_paths(
        (*parent, rank) for parent, count in _MEDUSA_63.items() for rank in range(count)
    )


def chain(length: int) -> Tree:
    """The best child of the best child …, `length` deep."""
    return Tree.from_paths([(0,) * depth for depth in range(1, length + 1)])


def full(width: int, depth: int) -> Tree:
    """Every path of up to `depth` ranks below `width`."""
    return Tree.from_paths(
        path for d in range(1, depth + 1) for path in product(range(width), repeat=d)
    )


def tree_by_name(spec: str) -> Tree:
    """The tree that a name or a file stands for.

    Args:
        spec: `root`, `medusa-63`, `chain-K`, `full-WxD`, `eagle-KxSxN` (topk, steps and nodes with
            the root), or a file in one of the forms of `forms.py`; `FILE:NAME` picks one of several
            trees in a Python file.

    Raises:
        TreeError: no such name and no such file.
    """
    if spec == "root":
        return ROOT
    if spec == "medusa-63":
        return medusa_63()
    if match := re.fullmatch(r"chain-(\d{1,4})", spec):
        length = int(match[1])
        if length > MAX_NODES:
            raise TreeError(f"{spec} has more than {MAX_NODES} nodes; give a shorter chain")
        return chain(length)
    if match := re.fullmatch(r"full-(\d{1,4})x(\d{1,2})", spec):
        width, depth = int(match[1]), int(match[2])
        if width < 1 or sum(width**d for d in range(1, depth + 1)) > MAX_NODES:
            raise TreeError(f"{spec} has no nodes or more than {MAX_NODES}; give a smaller tree")
        return full(width, depth)
    if match := re.fullmatch(r"eagle-(\d{1,4})x(\d{1,4})x(\d{1,4})", spec):
        return eagle_tree(*(int(number) for number in match.groups()))
    path, _, name = spec.rpartition(":")
    if _is_file(spec):
        return read_tree(FilePath(spec))
    if path and _is_file(path):
        return read_tree(FilePath(path), name)
    raise TreeError(
        f"no tree named {spec!r} and no such file; give medusa-63, chain-K, full-WxD, eagle-KxSxN,"
        " root or a file of rank paths"
    )


def _is_file(spec: str) -> bool:
    """Not an error for what cannot be a path, such as a name that is too long."""
    try:
        return FilePath(spec).is_file()
    except (OSError, ValueError):
        return False
