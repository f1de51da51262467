"""A tree as lines of text, for a terminal.

Knows: trees. Does not know: terminals, colours.

Every line is a node, named by its rank; neighbouring leaves of one parent share a line:

    root
    ├─ 0
    │  └─ 0..3
    └─ 1..2
"""

from __future__ import annotations

from collections.abc import Iterator

from entmtp.trees.tree import Path, Tree


def draw_tree(tree: Tree) -> str:
    """The whole tree, one line for each inner node and each run of leaves."""
    return "\n".join(["root", *_below_root(_children(tree))])


def nodes_per_depth(tree: Tree) -> list[int]:
    """Draft tokens at depth 1, 2, …"""
    return [tree.depths.count(depth) for depth in range(1, tree.depth + 1)]


def _children(tree: Tree) -> dict[Path, list[int]]:
    children: dict[Path, list[int]] = {path: [] for path in tree.paths}
    for path in tree.paths[1:]:
        children[path[:-1]].append(path[-1])
    return children


def _below_root(children: dict[Path, list[int]]) -> Iterator[str]:
    """Depth first with a stack of our own: a tree may be deeper than Python's."""
    open_nodes: list[tuple[Path, str, Iterator[tuple[int, int, bool]]]] = []
    open_nodes.append(((), "", iter(_groups((), children))))
    while open_nodes:
        parent, indent, groups = open_nodes[-1]
        group = next(groups, None)
        if group is None:
            open_nodes.pop()
            continue
        first, last, is_last = group
        name = str(first) if first == last else f"{first}..{last}"
        yield f"{indent}{'└─' if is_last else '├─'} {name}"
        node = (*parent, first)
        deeper = indent + ("   " if is_last else "│  ")
        open_nodes.append((node, deeper, iter(_groups(node, children))))


def _groups(parent: Path, children: dict[Path, list[int]]) -> list[tuple[int, int, bool]]:
    """First and last rank of what shares a line, an inner node or a run of leaves; is it last?"""
    groups: list[tuple[int, int]] = []
    for rank in children[parent]:
        is_leaf = not children[*parent, rank]
        if is_leaf and groups and groups[-1][1] == rank - 1 and not children[*parent, rank - 1]:
            groups[-1] = (groups[-1][0], rank)
        else:
            groups.append((rank, rank))
    return [(*group, index == len(groups) - 1) for index, group in enumerate(groups)]
