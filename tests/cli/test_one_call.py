"""One call to an engine: which trees it uses, and what contradicts what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bank_policies import bank_for
from entmtp import load
from entmtp.engine.made_for import made_for
from entmtp.errors import ArtefactError, BadInput
from entmtp.heads import default_tree, load_heads
from entmtp.scheduler import MadeFor, read_bank, write_bank
from entmtp.target.load import load_target
from entmtp.trees import ROOT, tree_by_name

EAGER = {"dtype": "float32", "runtime": "eager"}


@pytest.fixture
def made(model_folder: Path, hydra_folder: Path) -> MadeFor:
    target = load_target(str(model_folder), "float32")
    return made_for(target, load_heads(hydra_folder, target))


@pytest.fixture
def bank(tmp_path: Path, made: MadeFor) -> Path:
    """Recommends `throughput`."""
    written = bank_for(made)
    timing = replace(written.timing, recommended="throughput")
    write_bank(replace(written, timing=timing), tmp_path / "bank.json")
    return tmp_path / "bank.json"


def test_a_tree_or_the_heads_own(model_folder: Path, hydra_folder: Path) -> None:
    engine = load(str(model_folder), str(hydra_folder), "chain-2", **EAGER)
    assert [tree.num_nodes for tree in engine.policy.trees] == [3]
    engine = load(str(model_folder), str(hydra_folder), **EAGER)
    assert engine.policy.trees == (default_tree(hydra_folder),)


def test_a_bank(model_folder: Path, hydra_folder: Path, bank: Path) -> None:
    engine = load(str(model_folder), str(hydra_folder), bank=bank, **EAGER)
    assert engine.policy.name == "throughput"
    engine = load(str(model_folder), str(hydra_folder), bank=bank, policy="per-step", **EAGER)
    assert engine.policy.name == "per-step"
    with pytest.raises(ArtefactError, match="float32"):
        load(str(model_folder), str(hydra_folder), bank=bank, dtype="bfloat16", runtime="eager")


@pytest.mark.parametrize("tree", [None, "chain-2"])
def test_policies_that_need_no_bank(
    model_folder: Path,
    hydra_folder: Path,
    bank: Path,
    monkeypatch: pytest.MonkeyPatch,
    tree: str | None,
) -> None:
    monkeypatch.setattr("entmtp.engine.shipped_bank.PACKAGED", hydra_folder.parent)
    monkeypatch.setattr("entmtp.engine.shipped_bank.BANK_NAMES", (str(bank),))
    own = default_tree(hydra_folder)
    engine = load(str(model_folder), str(hydra_folder), tree, policy="static", **EAGER)
    assert engine.policy.trees == (tree_by_name(tree) if tree else own,)
    if tree is None:
        engine = load(str(model_folder), str(hydra_folder), policy="random", **EAGER)
        assert engine.policy.name == "random"
        assert {ROOT, own} <= set(engine.policy.trees)
        for heads in (None, str(hydra_folder)):
            engine = load(str(model_folder), heads, policy="plain", **EAGER)
            assert (engine.policy.name, engine.heads) == ("plain", None)
        engine = load(str(model_folder), str(hydra_folder), bank=bank, policy="static", **EAGER)
        assert engine.policy.trees == tuple(dict.fromkeys(read_bank(bank).static_trees))


def test_the_bank_that_comes_with_heads(
    model_folder: Path,
    hydra_folder: Path,
    bank: Path,
    made: MadeFor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("entmtp.engine.shipped_bank.PACKAGED", hydra_folder.parent)
    monkeypatch.setattr("entmtp.engine.shipped_bank.BANK_NAMES", (str(bank),))
    assert load(str(model_folder), str(hydra_folder), **EAGER).policy.name == "throughput"
    write_bank(bank_for(replace(made, runtime="openvino")), bank)
    assert load(str(model_folder), str(hydra_folder), **EAGER).policy.name == "static"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"heads": True, "tree": "chain-2", "policy": "ladder"}, "contradict each other"),
        ({"heads": True, "policy": "ladder"}, "policy ladder needs a bank of trees"),
        ({"heads": True, "tree": "chain-2", "policy": "plain"}, "contradict each other"),
        ({"heads": True, "bank": "b", "policy": "plain"}, "a bank and policy plain contradict"),
        ({"heads": True, "bank": "b", "policy": "random"}, "a bank and policy random contradict"),
        ({"heads": True, "policy": "best"}, "no policy is called 'best'; known: hysteresis,"),
        ({"policy": "static"}, "are for draft heads; give heads"),
        ({"tree": "chain-2"}, "are for draft heads; give heads"),
        ({"bank": "bank.json"}, "are for draft heads; give heads"),
    ],
)
def test_what_contradicts_itself(
    model_folder: Path, hydra_folder: Path, given: dict[str, str | bool], said: str
) -> None:
    options = {**given, "heads": str(hydra_folder) if "heads" in given else None}
    with pytest.raises(BadInput, match=said):
        load(str(model_folder), **options, **EAGER)
