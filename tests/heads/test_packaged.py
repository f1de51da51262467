"""The heads that come along: small, whole, and of the embedded model."""

from __future__ import annotations

import json

import pytest

from entmtp.heads import load_heads
from entmtp.heads.fingerprint import heads_fingerprint
from entmtp.heads.format import CONFIG_NAME, PACKAGED
from entmtp.heads.static_trees import read_static_trees
from entmtp.scheduler import read_bank
from entmtp.target import TargetModel

MAX_BYTES = 40_000_000
NAMES = ("hydra", "medusa")


def test_together_they_are_small() -> None:
    assert sum(file.stat().st_size for file in PACKAGED.rglob("*")) <= MAX_BYTES


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_card_and_trees(name: str) -> None:
    folder = PACKAGED / name
    config = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    assert config["base"]["name"] == "smollm2-135m"
    card = (folder / "README.md").read_text(encoding="utf-8")
    seen = [config["provenance"], config["provenance"].get("begun_with", {})]
    counts = [one["num_train_tokens"] for one in seen if one]
    assert sum(counts) > 900_000
    assert all(f"{count:,}" in card for count in counts)
    trees = read_static_trees(folder)
    assert max(entry.tree.num_nodes for entry in trees) == 64
    lengths = [entry.mean_acceptance_length for entry in trees]
    assert lengths == sorted(lengths)


@pytest.mark.real_model
@pytest.mark.parametrize("name", NAMES)
def test_the_banks_that_come_with_them_are_for_them(name: str, smollm2: TargetModel) -> None:
    banks = [read_bank(path) for path in (PACKAGED / name).glob("bank*.json")]
    assert len(banks) >= 5
    ours = heads_fingerprint(load_heads(name, smollm2))
    assert {bank.made_for.heads for bank in banks} == {ours}
