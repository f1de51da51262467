"""Heads from layout to layout: what comes back drafts the same, what cannot be held is refused."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from draft_heads import KINDS, random_heads
from entmtp.errors import BadInput, EntmtpError, HeadsError
from entmtp.heads import (
    DraftHeads,
    HeadsConfig,
    StaticTree,
    build_heads,
    convert_heads,
    load_heads,
    prefix_shape,
    read_static_trees,
    save_heads,
    write_static_trees,
)
from entmtp.target import TargetModel
from entmtp.trees import chain, full, tree_buffers
from fixtures import byte_tokenizer, tiny, tiny_model

VOCAB = 24
TARGET = tiny(vocab_size=VOCAB)


def heads_of(
    kind: str,
    output: str,
    *,
    num_layers: int = 1,
    draft_vocab_size: int = VOCAB,
    is_repeated: bool = False,
) -> DraftHeads:
    prefix = prefix_shape(TARGET) if kind == "hydra++" else None
    heads = build_heads(
        HeadsConfig(kind, 64, VOCAB, 3, num_layers, draft_vocab_size, output, prefix)
    )
    generator = torch.Generator().manual_seed(2)
    for weight in heads.parameters():
        weight.data.normal_(0.0, 0.2, generator=generator)
    if heads.draft_ids is not None:
        heads.draft_ids.copy_(torch.arange(draft_vocab_size).flip(0) * 2)
    for name, weight in heads.named_parameters():
        if is_repeated and name.startswith("block_"):
            weight.data.copy_(weight.data[:, :1].expand_as(weight))
        if is_repeated and name.startswith("rest.") and name.split(".")[2] != "0":
            first = name.split(".")
            first[2] = "0"
            weight.data.copy_(dict(heads.named_parameters())[".".join(first)].data)
    return heads


def draft_of(heads: DraftHeads) -> list[int]:
    buffers = tree_buffers((full(3, 3),), torch.device("cpu"))
    context = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    ids = heads.draft(context, torch.tensor([1]), buffers).ids
    return ids[0].tolist()


HELD = [
    ("medusa", "own", "medusa-v1", {}),
    ("medusa", "target", "medusa-v1", {}),
    ("medusa", "projected", "medusa-v1", {}),
    ("medusa", "own", "medusa-v1", {"num_layers": 3, "is_repeated": True}),
    ("medusa", "target", "medusa-v2", {}),
    ("medusa", "own", "vllm", {"num_layers": 2}),
    ("medusa", "target", "vllm", {}),
    ("medusa", "target", "vllm", {"draft_vocab_size": 9}),
    ("medusa", "own", "vllm", {"draft_vocab_size": 9}),
    ("medusa", "projected", "vllm", {"draft_vocab_size": 9}),
    ("hydra", "own", "hydra", {"num_layers": 2}),
    ("hydra", "target", "hydra", {"num_layers": 3, "is_repeated": True}),
    ("hydra++", "own", "hydra", {"num_layers": 2}),
    ("hydra++", "target", "hydra", {}),
]


@pytest.mark.parametrize(("kind", "output", "layout", "sizes"), HELD)
def test_there_and_back_drafts_the_same(
    kind: str, output: str, layout: str, sizes: dict[str, int], tmp_path: Path
) -> None:
    heads = heads_of(kind, output, **sizes)
    save_heads(heads, tmp_path / "own", TARGET, {"seed": 7}, torch.float32)
    wanted = draft_of(load_heads(tmp_path / "own", TARGET))
    is_warned = layout == "vllm" and "draft_vocab_size" in sizes
    with pytest.warns(match="0.32.0 does not load") if is_warned else nullcontext():
        convert_heads(tmp_path / "own", tmp_path / "out", layout, TARGET)
    assert draft_of(load_heads(tmp_path / "out", TARGET)) == wanted
    convert_heads(tmp_path / "out", tmp_path / "back", "own", TARGET)
    back = load_heads(tmp_path / "back", TARGET)
    assert draft_of(back) == wanted
    assert back.kind == kind
    if output == "own":
        for name, value in heads.state_dict().items():
            assert torch.equal(back.state_dict()[name], value), name
    assert len({*wanted}) > 2


@pytest.mark.parametrize(
    ("kind", "output", "sizes", "layout", "words"),
    [
        ("hydra", "own", {}, "medusa-v1", "they are hydra, it is for medusa"),
        ("medusa", "own", {}, "hydra", "they are medusa, it is for hydra and hydra++"),
        ("medusa", "own", {"draft_vocab_size": 9}, "medusa-v1", "9 of 24 tokens, and it has no"),
        ("medusa", "target", {"draft_vocab_size": 9}, "medusa-v2", "9 of 24 tokens"),
        ("hydra++", "target", {"draft_vocab_size": 9}, "hydra", "9 of 24 tokens"),
        ("medusa", "own", {}, "medusa-v2", "it shares the model's output layer"),
        ("medusa", "projected", {}, "medusa-v2", "it shares the model's output layer"),
        ("medusa", "own", {"num_layers": 2}, "medusa-v1", "head 0 has 2 different blocks"),
        ("hydra", "own", {"num_layers": 3}, "hydra", "head 0 has 2 different blocks"),
    ],
)
def test_what_a_layout_cannot_hold_is_refused_by_name(
    kind: str, output: str, sizes: dict[str, int], layout: str, words: str, tmp_path: Path
) -> None:
    save_heads(heads_of(kind, output, **sizes), tmp_path / "own", TARGET, {}, torch.float32)
    with pytest.raises(HeadsError, match=f"{layout} cannot hold these heads: .*{words}"):
        convert_heads(tmp_path / "own", tmp_path / "out", layout, TARGET)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_weights_may_be_read_by_whom_the_other_files_may(tmp_path: Path) -> None:
    save_heads(heads_of("medusa", "own"), tmp_path / "own", TARGET, {}, torch.float32)
    convert_heads(tmp_path / "own", tmp_path / "vllm", "vllm", TARGET)
    for folder in ("own", "vllm"):
        assert len({path.stat().st_mode for path in (tmp_path / folder).iterdir()}) == 1


def test_a_prefix_layer_of_other_sizes_is_refused(tmp_path: Path) -> None:
    heads = random_heads(TARGET, "hydra++")
    save_heads(heads, tmp_path / "own", TARGET, {}, torch.float32)
    description = json.loads((tmp_path / "own" / "heads.json").read_text())
    description["config"]["prefix"]["rope_theta"] = 5.0
    (tmp_path / "own" / "heads.json").write_text(json.dumps(description))
    with pytest.raises(HeadsError, match="their prefix layer has other sizes"):
        convert_heads(tmp_path / "own", tmp_path / "out", "hydra", TARGET)


def test_rows_of_a_model_with_an_output_bias_cannot_be_written_out(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=VOCAB)
    model.lm_head.bias = torch.nn.Parameter(torch.randn(VOCAB))
    target = TargetModel.from_transformers(model)
    save_heads(heads_of("medusa", "target"), tmp_path / "own", target, {}, torch.float32)
    with pytest.raises(HeadsError, match="whose output layer has a bias"):
        convert_heads(tmp_path / "own", tmp_path / "out", "medusa-v1", target)


def test_numbers_stay_as_they_are_stored(tmp_path: Path) -> None:
    heads = heads_of("medusa", "own")
    for dtype in (torch.float16, torch.float32):
        name = str(dtype)
        save_heads(heads, tmp_path / name, TARGET, {}, dtype)
        convert_heads(tmp_path / name, tmp_path / f"{name}-v1", "medusa-v1", TARGET)
        stored = load_file(tmp_path / f"{name}-v1" / "medusa_lm_head.safetensors")
        assert {value.dtype for value in stored.values()} == {dtype}
        convert_heads(tmp_path / f"{name}-v1", tmp_path / f"{name}-own", "own", TARGET)
        own = load_file(tmp_path / f"{name}-own" / "heads.safetensors")
        assert torch.equal(own["block_weight"], heads.block_weight.to(dtype))


def test_trees_and_provenance_come_along(tmp_path: Path) -> None:
    save_heads(heads_of("medusa", "own"), tmp_path / "own", TARGET, {"seed": 7}, torch.float32)
    trees = (StaticTree(chain(2), 1.5), StaticTree(full(3, 2), 2.5))
    write_static_trees(tmp_path / "own", trees)
    convert_heads(tmp_path / "own", tmp_path / "out", "vllm", TARGET)
    assert read_static_trees(tmp_path / "out") == trees
    convert_heads(tmp_path / "own", tmp_path / "again", "own", TARGET)
    assert read_static_trees(tmp_path / "again") == trees
    assert json.loads((tmp_path / "again" / "heads.json").read_text())["provenance"] == {"seed": 7}


def test_nothing_is_overwritten_and_nothing_half_written_stays(tmp_path: Path) -> None:
    save_heads(heads_of("medusa", "own"), tmp_path / "own", TARGET, {}, torch.float32)
    for place in (tmp_path / "own", tmp_path / "own" / "heads.json"):
        with pytest.raises(BadInput, match="is there already; give a new or empty folder"):
            convert_heads(tmp_path / "own", place, "own", TARGET)
    with pytest.raises(BadInput, match="unknown layout 'medusa'; expected one of own, medusa-v1"):
        convert_heads(tmp_path / "own", tmp_path / "out", "medusa", TARGET)
    (tmp_path / "empty").mkdir()
    convert_heads(tmp_path / "own", tmp_path / "empty", "own", TARGET)
    assert (tmp_path / "empty" / "heads.json").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write"):
        convert_heads(tmp_path / "own", tmp_path / "file" / "out", "own", TARGET)
    assert {path.name for path in tmp_path.iterdir()} == {"own", "empty", "file"}


@pytest.mark.parametrize("layout", ["medusa-v1", "vllm"])
def test_M09_written_heads_know_their_base_and_its_tokenizer(layout: str, tmp_path: Path) -> None:
    model = tiny_model(vocab_size=258)
    target = TargetModel.from_transformers(model, byte_tokenizer(), name="a")
    heads = random_heads(target, "medusa")
    save_heads(heads, tmp_path / "own", target, {}, torch.float32)
    convert_heads(tmp_path / "own", tmp_path / "out", layout, target)
    other = tiny_model(vocab_size=258, seed=1)
    with pytest.warns(UserWarning, match=f"trained for a .{target.fingerprint}., the model is b"):
        load_heads(tmp_path / "out", TargetModel.from_transformers(other, byte_tokenizer(), "b"))
    words = byte_tokenizer().__class__(tokenizer_object=byte_tokenizer().backend_tokenizer)
    words.add_tokens(["<another>"])
    for place in ("own", "out"):
        with pytest.warns(UserWarning, match="trained with another tokenizer"):
            load_heads(tmp_path / place, TargetModel.from_transformers(model, words, "a"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_config_in_the_style_of_speculators_lies_beside(kind: str, tmp_path: Path) -> None:
    save_heads(random_heads(TARGET, kind), tmp_path, TARGET, {})
    config = json.loads((tmp_path / "config.json").read_text())
    name = kind.replace("++", "_plus_plus")
    assert config["speculators_model_type"] == f"entmtp_{name}"
    assert config["speculators_config"]["verifier"] == {
        "name_or_path": "tiny-llama",
        "architectures": ["LlamaForCausalLM"],
    }
    (method,) = config["speculators_config"]["proposal_methods"]
    assert method["proposal_type"] == config["speculators_config"]["default_proposal_method"]
    assert method["speculative_tokens"] == 4
    assert ("transformer_layer_config" in config) == (kind == "hydra++")
    assert (tmp_path / config["entmtp"]["heads"]).is_file()


@pytest.mark.parametrize("layout", ["own", "medusa-v1", "medusa-v2", "vllm", "hydra"])
def test_M10_heads_in_the_place_of_a_model(layout: str, tmp_path: Path) -> None:
    from entmtp.target.load import load_target

    kind = "hydra" if layout == "hydra" else "medusa"
    save_heads(heads_of(kind, "target"), tmp_path / "in", TARGET, {}, torch.float32)
    convert_heads(tmp_path / "in", tmp_path / "out", layout, TARGET)
    with pytest.raises(EntmtpError, match="holds draft heads, not a model; pass it as the heads"):
        load_target(str(tmp_path / "out"))
