"""Draft trees: geometry, device buffers, names, files, pictures, replay. Knows no model."""

from entmtp.trees.buffers import Level, TreeBuffers, tree_buffers
from entmtp.trees.cut import cut_buffers
from entmtp.trees.draw import draw_tree, nodes_per_depth
from entmtp.trees.forms import FORMS, eagle_tree, format_tree, parse_tree, read_tree, write_tree
from entmtp.trees.named import chain, full, medusa_63, tree_by_name
from entmtp.trees.part import Part
from entmtp.trees.tree import ROOT, Path, Tree
from entmtp.trees.whole_numbers import int_tensor

__all__ = [
    "FORMS",
    "ROOT",
    "Level",
    "Part",
    "Path",
    "Tree",
    "TreeBuffers",
    "chain",
    "cut_buffers",
    "draw_tree",
    "eagle_tree",
    "format_tree",
    "full",
    "int_tensor",
    "medusa_63",
    "nodes_per_depth",
    "parse_tree",
    "read_tree",
    "tree_buffers",
    "tree_by_name",
    "write_tree",
]
