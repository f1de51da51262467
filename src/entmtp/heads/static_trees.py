"""`trees.json` beside heads: their best static trees of several sizes, found in training.

Knows: the file. Does not know: how the trees were found, or which size is best on a machine.

Mean acceptance lengths (bonus token included) are of held-out rows; the trees were picked on
training rows. They are nested: a larger one contains the smaller. The file names the weights that
it was made for, and is refused beside others.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from entmtp.data.strict_json import number, parse_json
from entmtp.errors import ArtefactError, TreeError
from entmtp.heads.base import HeadsConfig
from entmtp.heads.fingerprint import stored_fingerprint
from entmtp.heads.format import CONFIG_NAME, count_heads, describe_heads
from entmtp.trees import ROOT, Tree, medusa_63

SCHEMA_VERSION = 2
FILE_NAME = "trees.json"
_BROKEN = (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError, TreeError)
DEFAULT_NUM_NODES = 16
"""The root is one of them."""


class StaticTree(NamedTuple):
    """One tree and what it brought on held-out rows."""

    tree: Tree
    mean_acceptance_length: float


def write_static_trees(folder: str | Path, trees: Sequence[StaticTree]) -> None:
    """Write the file for the heads in a folder, whole or not at all."""
    entries = [
        {
            "num_nodes": entry.tree.num_nodes,
            "mean_acceptance_length": round(entry.mean_acceptance_length, 4),
            "paths": [list(path) for path in entry.tree.paths if path],
        }
        for entry in trees
    ]
    lines = ",\n  ".join(json.dumps(entry) for entry in entries)
    made_for = json.dumps(stored_fingerprint(folder))
    head = f'"schema_version": {SCHEMA_VERSION}, "heads": {made_for}'
    text = f'{{{head}, "trees": [\n  {lines}\n]}}\n'
    half = Path(folder) / f".{FILE_NAME}"
    half.write_text(text, encoding="utf-8")
    half.replace(Path(folder) / FILE_NAME)


def read_static_trees(folder: str | Path) -> tuple[StaticTree, ...]:
    """The trees of a heads folder (or beside a heads file), smallest first; none without the file.

    Raises:
        ArtefactError: the file is broken, was made for other heads than those beside it, or has
            a tree that they cannot fill.
    """
    folder = Path(folder).parent if Path(folder).is_file() else Path(folder)
    path = folder / FILE_NAME
    if not path.exists():
        return ()
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        if content["schema_version"] != SCHEMA_VERSION:
            raise ArtefactError(
                f"{path} has schema version {content['schema_version']}, this program reads"
                f" {SCHEMA_VERSION}; make it again with train-heads --trees-only"
            )
        _check_made_for(path, content["heads"])
        trees = [
            StaticTree(Tree.from_paths(entry["paths"]), number(entry["mean_acceptance_length"]))
            for entry in content["trees"]
        ]
    except _BROKEN as error:
        raise _broken(path, error) from error
    if (folder / CONFIG_NAME).is_file():
        _check_fit(path, [entry.tree for entry in trees], describe_heads(folder).config)
    return tuple(sorted(trees, key=lambda entry: entry.tree.num_nodes))


def _check_made_for(path: Path, made_for: object) -> None:
    """Refuse trees of heads that have been trained again or copied over since."""
    found = stored_fingerprint(path.parent)
    if made_for != found:
        raise ArtefactError(
            f"{path} was made for the heads {made_for}, beside it are {found}; make it again with"
            " train-heads --trees-only, or remove it"
        )


def _broken(path: Path, error: Exception) -> ArtefactError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ArtefactError(
        f"{path} is broken ({reason}); make it again with train-heads --trees-only"
    )


def _check_fit(path: Path, trees: Sequence[Tree], config: HeadsConfig) -> None:
    for tree in trees:
        if tree.depth > config.num_draft_heads or tree.max_rank >= config.draft_vocab_size:
            raise ArtefactError(
                f"{path} has a tree {tree.depth} deep of ranks up to {tree.max_rank}, the heads"
                f" beside it number {config.num_draft_heads} and know {config.draft_vocab_size}"
                " tokens; make it again with train-heads --trees-only"
            )


def default_tree(folder: str | Path) -> Tree:
    """The stored tree of 16 nodes, root included, or the nearest.

    Where none is stored, `medusa-63` as deep as there are heads.

    Raises:
        HeadsError, ArtefactError: there are no heads, or they cannot be read.
    """
    stored = read_static_trees(folder)
    if not stored:
        return medusa_63().truncate(count_heads(folder))
    return min(
        (entry.tree for entry in stored),
        key=lambda tree: abs(tree.num_nodes - DEFAULT_NUM_NODES),
    )


def trees_to_mix(folder: str | Path) -> tuple[Tree, ...]:
    """What policy `random` draws from: plain decoding, the default tree, and all that are stored.

    Raises:
        HeadsError, ArtefactError: there are no heads, or they cannot be read.
    """
    return (ROOT, default_tree(folder), *(entry.tree for entry in read_static_trees(folder)))
