"""Case M13: tensors and files of published heads that are missing, odd, cut off or hostile."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from entmtp.heads import load_heads
from layouts import RING, V, generate, hydra, medusa_blocks, medusa_v1, refusal, vllm
from weight_files import Tensors, write_pickle, write_safetensors, write_shards


def without(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def renamed(old: str, new: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({new: tensors.pop(old)})


def added(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: torch.zeros(1)})


def reshaped(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensors[name][..., :-1].contiguous()})


HYDRA = "hydra_mlp.1.0.res_connection"
PLUS = "prefix_embeding_layer.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "change", "words"),
    [
        (medusa_v1, without("2.1.weight"), "missing: 2.1.weight; unexpected: none"),
        (medusa_v1, without("0.0.linear.weight"), "missing: 0.0.linear.weight; unexpected: none"),
        (
            medusa_v1,
            renamed("3.0.linear.bias", "3.0.lineer.bias"),
            "missing: 3.0.linear.bias; unexpected: 3.0.lineer.bias",
        ),
        (medusa_v1, added("surplus"), "missing: none; unexpected: surplus"),
        (medusa_v1, reshaped("1.1.weight"), "1.1.weight has shape [13, 12], expected [13, 13]"),
        (medusa_v1, added("700.0.linear.weight"), "700.0.linear.weight; heads and blocks are"),
        (medusa_blocks, without("1.0.linear.bias"), "missing: 1.0.linear.bias; unexpected: none"),
        (vllm, without("lm_heads.1.weight"), "missing: lm_heads.1.weight; unexpected: none"),
        (vllm, without("blocks.1.layers.0.bias"), "missing: blocks.1.layers.0.bias; unexp"),
        (vllm, added("lm_heads.9.weight"), "missing: none; unexpected: lm_heads.9.weight"),
        (hydra, without(f"{HYDRA}.bias"), f"missing: {HYDRA}.bias; unexpected: none"),
        (hydra, reshaped(f"{HYDRA}.weight"), f"{HYDRA}.weight has shape [13, 38], expected"),
        (hydra, added("hydra_lm_head.4.weight"), "unexpected: hydra_lm_head.4.weight"),
        (
            lambda: hydra(3, is_prefixed=True),
            renamed(f"{PLUS}.weight", f"{PLUS}.scale"),
            f"missing: {PLUS}.weight; unexpected: {PLUS}.scale",
        ),
        (lambda: hydra(is_prefixed=True), added(f"{PLUS}.bias"), f"unexpected: {PLUS}.bias"),
    ],
)
def test_M13_wrong_tensors_are_named(
    tensors: Callable[[], Tensors], change: Callable[[Tensors], None], words: str, tmp_path: Path
) -> None:
    changed = tensors()
    change(changed)
    assert words in refusal(write_safetensors(tmp_path, changed))


def test_M13_broken_files_are_named(tmp_path: Path) -> None:
    for write, name in (
        (write_pickle, "medusa_lm_head.pt"),
        (write_safetensors, "medusa_lm_head.safetensors"),
    ):
        file = write(tmp_path / name, medusa_v1()) / name
        file.write_bytes(file.read_bytes()[:-200])
        assert name in refusal(file.parent)
    folder = write_shards(tmp_path / "shards", medusa_v1())
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "'model-00002-of-00002.safetensors', which is not beside it" in refusal(folder)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"0.1.weight": "../model.safetensors"}}))
    assert "which is not beside it" in refusal(folder)
    index.write_text(json.dumps({"weight_map": {"0.9.weight": "model-00001-of-00002.safetensors"}}))
    assert "lacks '0.9.weight', which the index promises" in refusal(folder)
    (folder / "config.json").write_text("[]")
    index.unlink()
    assert "config.json holds a list" in refusal(folder / "model-00001-of-00002.safetensors")


@pytest.mark.parametrize("layout", ["medusa-v1", "vllm", "hydra"])
def test_M13_not_a_number_is_warned_of_and_costs_speed_alone(layout: str, tmp_path: Path) -> None:
    tensors = {"medusa-v1": medusa_v1, "vllm": vllm, "hydra": hydra}[layout]()
    name = next(n for n in tensors if n.endswith("weight") and "embed" not in n)
    tensors[name][0, 0] = torch.nan
    with pytest.warns(UserWarning, match=f"{name} holds NaN"):
        heads = load_heads(write_pickle(tmp_path, tensors), RING)
    result = generate(heads, 20)
    assert list(result.token_ids) == [(1 + i) % V for i in range(20)]
    assert result.stats.mean_acceptance_length < 1.5


def test_M13_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, (f"open({str(tmp_path / 'hit')!r}, 'w')",))

    for is_new in (True, False):
        file = tmp_path / "medusa_lm_head.pt"
        torch.save({"0.0.linear.weight": Hostile()}, file, _use_new_zipfile_serialization=is_new)
        said = refusal(tmp_path)
        assert "it wants to run" in said
        assert "exec" in said
        assert "weights_only" not in said  # torch's own words say how to run it
        assert not (tmp_path / "hit").exists()


def test_M13_a_pickle_of_something_else_is_named(tmp_path: Path) -> None:
    for content, words in (
        ([1, 2], "holds a list, expected tensors by name"),
        ({"0.0.linear.weight": 3}, "'0.0.linear.weight', a int that is no plain tensor"),
        ({1: torch.zeros(2)}, "holds 1, a Tensor"),
        ({n: v.int() for n, v in medusa_v1().items()}, "torch.int32, expected floating-point"),
    ):
        torch.save(content, tmp_path / "medusa_lm_head.pt")
        assert words in refusal(tmp_path)
