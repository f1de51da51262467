"""Cases M08, M09, M10, B15, B17, B18: heads as other projects store them. (M13: broken heads.)"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from draft_heads import random_heads
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import ArtefactError, HeadsError, TreeError
from entmtp.heads import default_tree, load_heads, read_heads, save_heads
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import chain, medusa_63
from fixtures import (
    byte_tokenizer,
    markov,
    piece_tokenizer,
    ring,
    ring_order,
    sure,
    tiny,
    tiny_model,
)
from layouts import (
    FULL,
    REDUCED,
    RING,
    K,
    V,
    generate,
    hydra,
    hydra_config,
    medusa_blocks,
    medusa_config,
    medusa_v1,
    refusal,
    vllm,
    whole_model,
)
from weight_files import with_config, write_pickle, write_safetensors, write_shards


@pytest.mark.parametrize("layout", FULL)
def test_M08_every_layout_is_accepted_to_the_last_token(layout: str, tmp_path: Path) -> None:
    heads = load_heads(FULL[layout](tmp_path / "heads"), RING)
    result = generate(heads, 61)
    assert list(result.token_ids) == [(1 + i) % V for i in range(61)]
    assert result.stats.num_accepted_tokens == result.stats.num_draft_tokens > 0
    assert result.stats.mean_acceptance_length == K + 1


@pytest.mark.parametrize("layout", REDUCED)
def test_B17_a_draft_vocabulary_is_right_about_what_it_covers(layout: str, tmp_path: Path) -> None:
    heads = load_heads(REDUCED[layout](tmp_path / "heads"), RING)
    assert heads.config.draft_vocab_size == V - 1
    # Up to token 0, which no row stands for, everything is accepted.
    result = generate(heads, 11)
    assert list(result.token_ids) == list(range(1, 12))
    assert result.stats.mean_acceptance_length == K + 1
    assert list(generate(heads, 40).token_ids) == [(1 + i) % V for i in range(40)]


@pytest.mark.parametrize(
    "write",
    [
        lambda f: write_safetensors(f, {n: cut(n, v) for n, v in medusa_v1().items()}),
        lambda f: write_safetensors(f, {n: cut(n, v) for n, v in vllm().items()}),
        lambda f: write_pickle(f, {n: cut(n, v) for n, v in hydra().items()}),
    ],
)
def test_B17_without_its_map_it_is_refused(write: Callable[[Path], Path], tmp_path: Path) -> None:
    said = refusal(write(tmp_path))
    assert f"vocabulary 9, the model markov has {V}" in said
    assert "token_map" in said


def cut(name: str, value: torch.Tensor) -> torch.Tensor:
    is_output = name.endswith("1.weight") or "lm_head" in name
    return value[:9].clone() if is_output else value


def test_B17_a_map_that_is_none_is_refused(tmp_path: Path) -> None:
    for ids, words in (
        ([0, 1, 1], "2 different ids in 3 rows"),
        ([0, 1, V], f"reaches from 0 to {V}"),
        ([0.5, 1.0, 2.0], "token_map is no list of ids"),
        ([0, 1, 2, 3], "3 output rows, their token_map has 4 ids"),
    ):
        tensors = vllm() | {"token_map": torch.tensor(ids)}
        tensors |= {f"lm_heads.{k}.weight": torch.zeros(3, V) for k in range(K)}
        assert words in refusal(write_safetensors(tmp_path, tensors))


def test_B15_heads_may_lack_the_rows_of_padding(tmp_path: Path) -> None:
    model = tiny_model(vocab_size=288)
    target = TargetModel.from_transformers(model, byte_tokenizer(), name="padded")
    tensors = {"0.0.linear.weight": torch.zeros(64, 64), "0.0.linear.bias": torch.zeros(64)}
    for rows, has_map in ((288, False), (258, True)):
        tensors["0.1.weight"] = torch.randn(rows, 64)
        heads = load_heads(write_safetensors(tmp_path, tensors), target)
        assert (heads.draft_ids is not None) == has_map
        result = Engine(target, heads, StaticPolicy(chain(1))).generate([1], GenerationParams(8))
        assert result.token_ids == Engine(target).generate([1], GenerationParams(8)).token_ids
    tensors["0.1.weight"] = torch.randn(257, 64)
    assert "vocabulary 257, the model padded has 288" in refusal(
        write_safetensors(tmp_path, tensors), target
    )


def test_M08_the_weights_decide_and_it_is_said(tmp_path: Path) -> None:
    write_pickle(tmp_path, medusa_v1())
    with_config(tmp_path, medusa_config(num_heads=2, num_layers=3))
    with (
        pytest.warns(UserWarning, match=f"medusa_num_heads 2, the weights hold {K}"),
        pytest.warns(UserWarning, match="medusa_num_layers 3, the weights hold 1"),
    ):
        heads = load_heads(tmp_path, RING)
    assert heads.num_draft_heads == K


def test_M08_an_unknown_layout_says_what_is_there_and_what_is_read(tmp_path: Path) -> None:
    tensors = {f"jump.{i}.weight": torch.zeros(2) for i in range(9)}
    said = refusal(write_safetensors(tmp_path, tensors, "jump.safetensors"))
    assert "unexpected: jump.0.weight" in said
    assert "and 3 more" in said
    for name in ("medusa-v1", "medusa-v2", "vllm", "hydra"):
        assert name in said
    for arch in ("eagle-attn", "cross-attn"):
        folder = write_pickle(tmp_path / arch, hydra(), "hydra_lm_head.pt")
        with_config(folder, hydra_config(arch))
        assert f"architecture '{arch}'; supported are mlp and prefix-mlp" in refusal(folder)


def test_M08_ungrounded_hydra_heads_are_refused_by_name(tmp_path: Path) -> None:
    tensors = {n: v for n, v in hydra().items() if "res_connection" not in n}
    tensors = {n: v[:, :V] if "hydra_mlp" in n and v.ndim == 2 else v for n, v in tensors.items()}
    assert "ungrounded Hydra heads" in refusal(write_pickle(tmp_path, tensors))


def test_M08_heads_without_output_layers_are_said_to_share_the_models(tmp_path: Path) -> None:
    with_config(write_safetensors(tmp_path, medusa_blocks()), medusa_config())
    with pytest.warns(UserWarning, match="does not say version 2; the model's own output layer"):
        load_heads(tmp_path, RING)


def test_M08_dtypes_stay_as_stored_until_they_are_the_models(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {n: v.half() for n, v in medusa_v1().items()})
    assert next(read_heads(tmp_path, RING).parameters()).dtype == torch.float16
    assert next(load_heads(tmp_path, RING).parameters()).dtype == torch.float32


def test_M09_other_sizes_are_refused_with_both_numbers(tmp_path: Path) -> None:
    for name, write in FULL.items():
        place = write(tmp_path / name.replace(" ", "-"))
        said = refusal(place, tiny())
        assert f"hidden size {V}, the model tiny-llama has 64" in said
        if "v2" not in name:  # it stores nothing as long as the vocabulary
            assert f"vocabulary {V}, the model wide has {V + 1}" in refusal(place, wide_ring())


def wide_ring() -> TargetModel:
    """RING's hidden size with a token more."""
    model = markov(sure(ring_order(V))).transformers_model
    model.resize_token_embeddings(V + 1, mean_resizing=False)
    return TargetModel.from_transformers(model, name="wide")


def test_M09_another_base_is_warned_of(tmp_path: Path) -> None:
    config = {**medusa_config(), "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    with_config(write_pickle(tmp_path, medusa_v1()), config)
    with pytest.warns(UserWarning, match=r"trained for lmsys/vicuna-7b-v1.3, the model is markov"):
        heads = load_heads(tmp_path, RING)
    assert generate(heads, 11).stats.mean_acceptance_length == K + 1


@pytest.mark.parametrize("value", [10**400, float("nan"), "\ud800"])
def test_M13_a_configuration_that_cannot_be_is_one_line(tmp_path: Path, value: object) -> None:
    config = {**medusa_config(), "base_model_name_or_path": value}
    with_config(write_pickle(tmp_path, medusa_v1()), config)
    said = refusal(tmp_path)
    assert "config.json is not readable JSON (base_model_name_or_path " in said


def test_M09_the_same_base_with_another_tokenizer_is_warned_of(tmp_path: Path) -> None:
    ours = TargetModel.from_transformers(tiny_model(vocab_size=258), byte_tokenizer(), name="a")
    pieces = piece_tokenizer([f"<{index}>" for index in range(258)])
    theirs = TargetModel.from_transformers(tiny_model(vocab_size=258), pieces, name="b")
    heads = random_heads(ours, "medusa")
    save_heads(heads, tmp_path, ours, {}, torch.float32)
    with pytest.warns(UserWarning, match=r"trained with another tokenizer \(\w{16}, the model b"):
        loaded = load_heads(tmp_path, theirs)
    params = GenerationParams(12)
    drafted = Engine(theirs, loaded, StaticPolicy(chain(2))).generate([1], params)
    assert drafted.token_ids == Engine(theirs).generate([1], params).token_ids


def test_M09_another_embedding_is_warned_of(tmp_path: Path) -> None:
    tensors = hydra() | {"input_embed_fn.weight": torch.eye(V).roll(1, 0)}
    with pytest.warns(UserWarning, match="an embedding that is not that of the model markov"):
        load_heads(write_pickle(tmp_path, tensors), RING)


def test_M10_a_model_in_the_place_of_heads(tmp_path: Path) -> None:
    model = write_shards(tmp_path / "model", RING.transformers_model.state_dict())
    assert "holds a model, not draft heads; pass it as --model" in refusal(model)
    assert "no such file or folder" in refusal(tmp_path / "typo")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "neither heads nor weights; pass a folder" in refusal(empty)
    text = tmp_path / "notes.txt"
    text.write_text("heads")
    assert "neither heads nor weights" in refusal(text)
    several = write_pickle(tmp_path / "several", medusa_v1(), "one.pt")
    write_pickle(several, medusa_v1(), "two.pt")
    assert "several weight files (one.pt, two.pt); pass the one" in refusal(several)


def test_B18_the_tree_is_as_deep_as_there_are_heads(tmp_path: Path) -> None:
    two = {n: v for n, v in medusa_v1().items() if n[0] in "01"}
    folder = write_safetensors(tmp_path / "two", two)
    assert default_tree(folder) == medusa_63().truncate(2)
    assert default_tree(folder / "medusa_lm_head.safetensors").depth == 2
    heads = load_heads(folder, RING)
    with pytest.raises(TreeError, match="the tree is 4 deep but there are 2 draft heads"):
        Engine(RING, heads, StaticPolicy(chain(4)))
    # Four heads under a tree of depth 2 draft two levels and no more.
    heads = load_heads(write_safetensors(tmp_path / "four", medusa_v1()), RING)
    result = Engine(RING, heads, StaticPolicy(chain(2))).generate([0], GenerationParams(31))
    assert result.stats.mean_acceptance_length == 3


def test_B18_what_holds_no_heads_has_no_default_tree(tmp_path: Path) -> None:
    write_safetensors(tmp_path, {"model.embed_tokens.weight": torch.zeros(2)}, "model.safetensors")
    with pytest.raises(HeadsError, match="holds a model, not draft heads"):
        default_tree(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"{")
    with pytest.raises(ArtefactError, match=r"model.safetensors is not a readable"):
        default_tree(tmp_path)


def test_M10_heads_inside_a_whole_model_need_no_second_folder(tmp_path: Path) -> None:
    folder = write_shards(tmp_path, whole_model(medusa_v1()))
    RING.transformers_model.config.save_pretrained(folder)
    from entmtp.target.load import load_target

    target = load_target(str(folder), dtype="float32")
    heads = load_heads(folder, target)
    result = Engine(target, heads, StaticPolicy(chain(K))).generate([0], GenerationParams(21))
    assert result.stats.mean_acceptance_length == K + 1
    assert ring().vocab_size != target.vocab_size
