"""Draft heads: Medusa, Hydra, Hydra++, and their own format on disk.

Knows: the target model's hidden states and rows, trees as slots to fill. Does not know:
acceptance, sampling, sequences, training. A new kind is one file and one line in `registry.py`.
"""

from entmtp.heads.base import Draft, DraftHeads, HeadsConfig, PrefixShape, check_tree
from entmtp.heads.convert import LAYOUT_NAMES, check_conversion, convert_heads
from entmtp.heads.format import (
    HeadsDescription,
    count_heads,
    describe_heads,
    load_heads,
    locate_heads,
    read_heads,
    save_heads,
)
from entmtp.heads.registry import KINDS, build_heads, prefix_shape, start_from_target
from entmtp.heads.static_trees import (
    StaticTree,
    default_tree,
    read_static_trees,
    trees_to_mix,
    write_static_trees,
)
from entmtp.heads.vocabulary import choose_draft_ids, coverage, inverse_map

__all__ = [
    "KINDS",
    "LAYOUT_NAMES",
    "Draft",
    "DraftHeads",
    "HeadsConfig",
    "HeadsDescription",
    "PrefixShape",
    "StaticTree",
    "build_heads",
    "check_conversion",
    "check_tree",
    "choose_draft_ids",
    "convert_heads",
    "count_heads",
    "coverage",
    "default_tree",
    "describe_heads",
    "inverse_map",
    "load_heads",
    "locate_heads",
    "prefix_shape",
    "read_heads",
    "read_static_trees",
    "save_heads",
    "start_from_target",
    "trees_to_mix",
    "write_static_trees",
]
