"""Heads on disk: what is written is read, and what does not fit is named (M03, M09, M13, B17)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from draft_heads import random_heads
from entmtp.errors import ArtefactError, HeadsError
from entmtp.heads import (
    HeadsConfig,
    StaticTree,
    build_heads,
    default_tree,
    load_heads,
    read_static_trees,
    save_heads,
    start_from_target,
    write_static_trees,
)
from entmtp.target.fingerprint import is_alike
from entmtp.target.linears import can_pack
from entmtp.target.load import load_target
from entmtp.trees import chain, full, medusa_63, tree_buffers
from fixtures import tiny
from saved import save_bare_model

KINDS = ("medusa", "hydra", "hydra++")


def saved(folder: Path, kind: str = "medusa") -> Path:
    save_heads(random_heads(tiny(), kind), folder, tiny(), {"seed": 1}, torch.float32)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_heads_come_back_as_they_were(kind: str, tmp_path: Path) -> None:
    before = random_heads(tiny(), kind)
    after = load_heads(saved(tmp_path, kind), tiny())
    assert after.config == before.config
    for name, value in before.state_dict().items():
        assert torch.equal(after.state_dict()[name], value), name
    assert json.loads((tmp_path / "heads.json").read_text())["provenance"] == {"seed": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "heads.json",
        "heads.safetensors",
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_output_rows_say_what_plain_ones_say(kind: str, dtype: str, tmp_path: Path) -> None:
    target = load_target(str(save_bare_model(tmp_path / "model", vocab_size=40)), dtype)
    prefix = random_heads(target, kind).config.prefix
    sizes = target.hidden_size, target.vocab_size, 3, 2, 10
    heads = build_heads(HeadsConfig(kind, *sizes, "target", prefix))
    heads.draft_ids.copy_(torch.arange(0, 40, 4))
    save_heads(heads, tmp_path / "heads", target, {}, target.dtype)
    loaded = load_heads(tmp_path / "heads", target)
    if not can_pack(target.dtype):
        assert loaded.packed_rows is None
        pytest.skip(f"oneDNN has no kernel for {dtype} here")
    features = torch.randn(2, 5, target.hidden_size, dtype=target.dtype)
    packed = loaded.logits(1, features)
    assert loaded.packed_rows is not None
    loaded.packed_rows = None
    assert torch.allclose(packed, loaded.logits(1, features), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_the_target_are_not_stored(kind: str, tmp_path: Path) -> None:
    target = tiny(vocab_size=40)
    prefix = random_heads(target, kind).config.prefix
    heads = build_heads(HeadsConfig(kind, 64, 40, 3, 2, 10, "target", prefix))
    heads.draft_ids.copy_(torch.arange(0, 40, 4))
    heads.bind(target)
    save_heads(heads, tmp_path, target, {}, torch.float32)
    names = load_file(tmp_path / "heads.safetensors").keys()
    assert not any("output" in name or "embed" in name for name in names)
    loaded = load_heads(tmp_path, target)
    rows = target.output_weight[::4]
    assert torch.allclose(loaded.output(0)[0], rows - rows.mean(0), atol=1e-6)
    buffers = tree_buffers((full(2, 3),), torch.device("cpu"))
    context = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    drafts = [h.eval().draft(context, torch.tensor([1]), buffers) for h in (heads, loaded)]
    assert torch.equal(drafts[0].ids, drafts[1].ids)


def test_M03_own_rows_start_as_the_tied_embedding(tmp_path: Path) -> None:
    folder = save_bare_model(tmp_path / "model", vocab_size=24, tie_word_embeddings=True)
    target = load_target(str(folder), dtype="float32", self_check=False)
    heads = build_heads(HeadsConfig("medusa", 64, 24, 2, 1, 24, "own"))
    start_from_target(heads, target)
    for head in range(2):
        assert torch.equal(heads.output(head)[0], target.embedding_weight)


def delete(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["block_bias"]


def add(tensors: dict[str, torch.Tensor]) -> None:
    tensors["surplus.weight"] = torch.zeros(1)


def rename(tensors: dict[str, torch.Tensor]) -> None:
    tensors["block_offset"] = tensors.pop("block_bias")


def reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["block_bias"] = tensors["block_bias"][:, :, :9].contiguous()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (delete, "missing: block_bias; unexpected: none"),
        (add, "missing: none; unexpected: surplus.weight"),
        (rename, "missing: block_bias; unexpected: block_offset"),
        (reshape, r"block_bias has shape \[4, 1, 9\], expected \[4, 1, 64\]"),
    ],
)
def test_M13_wrong_tensors_are_named(
    change: Callable[[dict[str, torch.Tensor]], None], words: str, tmp_path: Path
) -> None:
    file = saved(tmp_path) / "heads.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(ArtefactError, match=words):
        load_heads(tmp_path, tiny())


def test_M13_broken_files_are_named(tmp_path: Path) -> None:
    file = saved(tmp_path) / "heads.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ArtefactError, match=r"heads.safetensors is not a readable"):
        load_heads(tmp_path, tiny())
    (tmp_path / "heads.json").write_text("{")
    with pytest.raises(ArtefactError, match=r"heads.json is not readable JSON"):
        load_heads(tmp_path, tiny())
    (tmp_path / "heads.json").unlink()
    with pytest.raises(HeadsError, match=r"heads.json is missing there"):
        load_heads(tmp_path, tiny())
    with pytest.raises(HeadsError, match=r"no such file or folder"):
        load_heads(tmp_path / "nowhere", tiny())


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_M13_not_a_number_is_warned_of(tmp_path: Path, number: str, dtype: torch.dtype) -> None:
    file = saved(tmp_path) / "heads.safetensors"
    tensors = {
        name: value.to(dtype) if value.is_floating_point() else value
        for name, value in load_file(file).items()
    }
    tensors["block_bias"][0, 0, 0] = float(number)
    save_file(tensors, file)
    with pytest.warns(UserWarning, match="block_bias holds NaN"):
        load_heads(tmp_path, tiny())


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("hidden_size", 32, "hidden size 32, the model tiny-llama has 64"),
        ("vocab_size", 50, "vocabulary 50, the model tiny-llama has 8"),
    ],
)
def test_M09_heads_of_another_base_are_refused(
    field: str, value: int, words: str, tmp_path: Path
) -> None:
    file = saved(tmp_path) / "heads.json"
    description = json.loads(file.read_text())
    description["config"][field] = value
    file.write_text(json.dumps(description))
    with pytest.raises(HeadsError, match=words):
        load_heads(tmp_path, tiny())


def test_M09_another_base_of_the_same_size_is_warned_of(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.warns(UserWarning, match=f"{tiny().fingerprint}.*{tiny(seed=1).fingerprint}"):
        load_heads(tmp_path, tiny(seed=1))


@pytest.mark.parametrize("made_in", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("used_in", [torch.float32, torch.bfloat16, torch.float16])
def test_M09_the_base_in_other_numbers_is_the_base(
    made_in: torch.dtype, used_in: torch.dtype, tmp_path: Path
) -> None:
    """Weights stored in float32: in float16 they have another fingerprint, and are no other."""
    base = tiny(dtype=made_in)
    save_heads(random_heads(base, "medusa"), tmp_path, base, {})
    load_heads(tmp_path, tiny(dtype=used_in))  # a warning is an error
    with pytest.warns(UserWarning, match="were trained for"):
        load_heads(tmp_path, tiny(dtype=used_in, seed=1))


def test_M09_float16_has_another_fingerprint_and_a_like_sketch() -> None:
    whole, half, other = tiny(), tiny(dtype=torch.float16), tiny(dtype=torch.float16, seed=1)
    assert whole.fingerprint == tiny(dtype=torch.bfloat16).fingerprint
    assert whole.fingerprint != half.fingerprint
    assert is_alike(whole.sketch, half.sketch)
    assert not is_alike(whole.sketch, other.sketch)
    assert len(whole.sketch) <= 64 * 4


@pytest.mark.parametrize("broken", [None, 3, "", "zz", "3f8", "3f80", "7fc0" * 30])
def test_M09_a_broken_sketch_is_a_warning(broken: object, tmp_path: Path) -> None:
    file = saved(tmp_path) / "heads.json"
    description = json.loads(file.read_text())
    description["base"]["sketch"] = broken
    file.write_text(json.dumps(description))
    load_heads(tmp_path, tiny())
    with pytest.warns(UserWarning, match="were trained for"):
        load_heads(tmp_path, tiny(dtype=torch.float16))


def test_B17_a_reduced_vocabulary_without_its_map_is_refused(tmp_path: Path) -> None:
    target = tiny(vocab_size=60)
    heads = build_heads(HeadsConfig("medusa", 64, 60, 2, 1, 50, "own"))
    heads.draft_ids.copy_(torch.arange(50))
    save_heads(heads, tmp_path, target, {})
    load_heads(tmp_path, target)
    tensors = load_file(tmp_path / "heads.safetensors")
    del tensors["draft_ids"]
    save_file(tensors, tmp_path / "heads.safetensors")
    with pytest.raises(ArtefactError, match="missing: draft_ids"):
        load_heads(tmp_path, target)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (("config", "num_draft_heads"), "4", "num_draft_heads is '4', expected int"),
        (("config", "kind"), None, "kind is None, expected str"),
        (("config", "prefix"), [1], r"prefix is \[1\], expected an object"),
        (("config", "prefix"), {"rope_theta": "1"}, "rope_theta is '1', expected float"),
        (("config", "surplus"), 1, "surplus"),
        (("config",), [], r"config is \[\], expected an object"),
        (("config", "num_draft_heads"), -4, "num_draft_heads is -4, expected 1 or more"),
        (("config", "num_layers"), -1, "num_layers is -1, expected 0 or more"),
        (("config", "vocab_size"), 10**400, "config.vocab_size is 1000"),
        (("provenance", "loss"), float("nan"), "provenance.loss is nan"),
        (("base", "name"), "\ud800", "base.name holds half a surrogate pair"),
        (("base",), ["a"], r"base is \['a'\], expected an object"),
        (("provenance",), None, "provenance is None, expected an object"),
    ],
)
def test_M13_a_wrong_type_in_the_description_is_named(
    place: tuple[str, ...], value: object, words: str, tmp_path: Path
) -> None:
    file = saved(tmp_path) / "heads.json"
    description = json.loads(file.read_text())
    outer = description
    for name in place[:-1]:
        outer = outer[name]
    outer[place[-1]] = value
    file.write_text(json.dumps(description))
    with pytest.raises(ArtefactError, match=words):
        load_heads(tmp_path, tiny())


def test_static_trees_that_the_heads_cannot_fill_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    write_static_trees(tmp_path, [StaticTree(chain(4), 2.0)])
    assert default_tree(tmp_path) == chain(4)
    for tree in (chain(5), full(9, 1)):  # four heads, eight tokens
        write_static_trees(tmp_path, [StaticTree(tree, 2.0)])
        with pytest.raises(ArtefactError, match=r"trees.json has a tree .* the heads beside it"):
            default_tree(tmp_path)


def test_static_trees_come_back_smallest_first(tmp_path: Path) -> None:
    saved(tmp_path)
    assert read_static_trees(tmp_path) == ()
    assert default_tree(tmp_path) == medusa_63()
    trees = (StaticTree(chain(2), 1.5), StaticTree(full(4, 2), 2.25))
    write_static_trees(tmp_path, trees[::-1])
    assert read_static_trees(tmp_path) == trees
    assert default_tree(tmp_path) == full(4, 2)
    file = tmp_path / "trees.json"
    signed = json.loads(file.read_text()) | {"trees": [{"paths": [[0, 1]]}]}
    file.write_text(json.dumps(signed))
    with pytest.raises(ArtefactError, match=r"trees.json is broken"):
        read_static_trees(tmp_path)
