"""`trees.json` is of the heads that it lies beside, or is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draft_heads import random_heads
from entmtp.errors import ArtefactError
from entmtp.heads import (
    StaticTree,
    default_tree,
    read_static_trees,
    save_heads,
    write_static_trees,
)
from entmtp.heads.fingerprint import stored_fingerprint
from entmtp.trees import chain
from fixtures import tiny


def saved(folder: Path, seed: int) -> Path:
    heads = random_heads(tiny(), "hydra", seed=seed)
    save_heads(heads, folder, tiny(), {}, torch.float32)
    return folder


def test_T07_static_trees_of_other_heads_are_refused_by_name(tmp_path: Path) -> None:
    ours, others = saved(tmp_path / "ours", 1), saved(tmp_path / "others", 2)
    write_static_trees(ours, [StaticTree(chain(2), 1.5)])
    file = ours / "trees.json"
    made_for = json.loads(file.read_text())["heads"]
    assert made_for == stored_fingerprint(ours)
    assert made_for != stored_fingerprint(others)
    assert default_tree(ours) == chain(2)
    # Copied to where other heads lie.
    (others / "trees.json").write_bytes(file.read_bytes())
    with pytest.raises(ArtefactError, match=rf"trees.json was made for the heads {made_for}, .*"):
        default_tree(others)
    # A folder that has been trained into again.
    saved(ours, 3)
    with pytest.raises(ArtefactError, match=r"make it again with train-heads --trees-only"):
        read_static_trees(ours)
    # What does not say whose it is, is nobody's.
    file.write_text(file.read_text().replace(f'"{made_for}"', "null"))
    with pytest.raises(ArtefactError, match=r"made for the heads None"):
        read_static_trees(ours)


@pytest.mark.parametrize("length", [10**400, float("nan"), float("inf"), -1, "1.5", True, None])
def test_a_length_that_cannot_be_is_one_line(tmp_path: Path, length: object) -> None:
    file = saved(tmp_path, 1) / "trees.json"
    write_static_trees(tmp_path, [StaticTree(chain(2), 1.5)])
    content = json.loads(file.read_text())
    content["trees"][0]["mean_acceptance_length"] = length
    file.write_text(json.dumps(content))
    with pytest.raises(ArtefactError, match=r"trees\.json is broken \(.*; make it again with"):
        read_static_trees(tmp_path)


def test_heads_saved_again_unchanged_keep_their_trees(tmp_path: Path) -> None:
    write_static_trees(saved(tmp_path, 1), [StaticTree(chain(2), 1.5)])
    saved(tmp_path, 1)
    assert default_tree(tmp_path) == chain(2)


def test_T07_trees_from_before_they_were_signed_are_of_another_version(tmp_path: Path) -> None:
    file = saved(tmp_path, 1) / "trees.json"
    file.write_text('{"schema_version": 1, "trees": []}')
    with pytest.raises(ArtefactError, match=r"trees.json has schema version 1, this program .* 2"):
        read_static_trees(tmp_path)


def test_one_changed_value_is_another_name(tmp_path: Path) -> None:
    file = saved(tmp_path, 1) / "heads.safetensors"
    before = stored_fingerprint(tmp_path)
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert stored_fingerprint(tmp_path) != before
    file.unlink()
    assert stored_fingerprint(tmp_path) is None
