"""Trees by name and from files, and what is said of everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entmtp.errors import TreeError
from entmtp.trees import ROOT, Tree, chain, full, medusa_63, read_tree, tree_by_name


def refusal(spec: str) -> str:
    with pytest.raises(TreeError) as caught:
        tree_by_name(spec)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_names() -> None:
    assert tree_by_name("root") == tree_by_name("chain-0") == ROOT
    assert tree_by_name("medusa-63") == medusa_63()
    assert tree_by_name("chain-12") == chain(12)
    assert tree_by_name("full-8x2") == full(8, 2)


@pytest.mark.parametrize("spec", ["chain-1025", "chain-9999", "full-0x3", "full-32x3", "full-2x99"])
def test_names_of_trees_that_are_none_or_too_large(spec: str) -> None:
    assert f"{spec} has" in refusal(spec)


@pytest.mark.parametrize("spec", ["medusa", "chain-", "chain--1", "full-3", "", "no/such.json"])
def test_names_of_nothing(spec: str) -> None:
    assert f"no tree named {spec!r} and no such file" in refusal(spec)


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    paths = [[1], [0], [1, 4], [0, 0]]
    file.write_text(json.dumps(paths))
    assert tree_by_name(str(file)) == read_tree(file) == Tree.from_paths(paths)
    file.write_text("[]")
    assert read_tree(file) == ROOT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[[0], [0, 1", "is not JSON"),
        (b"", "is not JSON"),
        (b'{"0": 1}', "holds a dict; expected a list"),
        (b"7", "holds a int; expected a list"),
        (b"[0, 1]", "0 is not a path"),
        (b"[[0], [1, 2]]", "path [1, 2] has no parent [1]"),
        (b"\xff\xfe[", "cannot read tree file"),
    ],
)
def test_a_file_that_is_no_tree(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "tree.json"
    file.write_bytes(content)
    message = refusal(str(file))
    assert said in message
    assert str(file) in message


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert "no such file" in refusal(str(tmp_path))
    with pytest.raises(TreeError, match="cannot read tree file"):
        read_tree(tmp_path)
