"""Quantised targets obey the law of their own plain decoding; case M12's missing packages."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from draft_heads import KINDS, random_heads
from entmtp.bench.rounding import float32_twin, rounding_ratio
from entmtp.decode import Sampling
from entmtp.errors import ModelRefused
from entmtp.heads import load_heads, save_heads
from entmtp.target import TargetModel
from entmtp.target.load import load_target
from entmtp.target.output import is_plain
from fixtures import tiny_model
from model_matrix import demand_exactness
from model_roster import VOCAB_SIZE

needs_torchao = pytest.mark.skipif(
    find_spec("torchao") is None, reason="torchao is not installed: pip install torchao"
)


def int8_folder(folder: Path, *, embeddings: bool = False) -> Path:
    """A checkpoint whose linear layers hold int8 weights; with the output layer, if so asked."""
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import AutoModelForCausalLM, TorchAoConfig

    tiny_model(vocab_size=VOCAB_SIZE).save_pretrained(folder / "whole")
    config = TorchAoConfig(Int8WeightOnlyConfig(), include_input_output_embeddings=embeddings)
    model = AutoModelForCausalLM.from_pretrained(
        folder / "whole", dtype=torch.float32, quantization_config=config
    )
    model.save_pretrained(folder / "int8")
    return folder / "int8"


@needs_torchao
@pytest.mark.parametrize("embeddings", [False, True], ids=["layers", "layers and output"])
def test_M12_int8_weights_obey_the_law(embeddings: bool, tmp_path: Path) -> None:
    folder = str(int8_folder(tmp_path, embeddings=embeddings))
    target = load_target(folder, "float32")
    assert not is_plain(target.transformers_model.model.layers[0].self_attn.q_proj.weight)
    whole = TargetModel.from_transformers(tiny_model(vocab_size=VOCAB_SIZE))
    assert target.fingerprint != whole.fingerprint
    assert is_plain(target.output_weight)
    assert (target.hidden_size, target.vocab_size) == (64, VOCAB_SIZE)
    with load_target(folder, "float32", self_check=False).own_attention() as bare:
        demand_exactness(bare, target)


@needs_torchao
@pytest.mark.parametrize("kind", KINDS)
def test_M12_heads_of_an_int8_target_are_saved_and_loaded(kind: str, tmp_path: Path) -> None:
    target = load_target(str(int8_folder(tmp_path)), "float32")
    save_heads(random_heads(target, kind), tmp_path / "heads", target, {}, torch.float16)
    assert load_heads(tmp_path / "heads", target).hidden_size == 64


@needs_torchao
def test_L02_differences_of_an_int8_target_in_16_bits_are_judged(tmp_path: Path) -> None:
    """Its float32 twin has the same weights, unpacked: no more than rounding lies between them."""
    folder = str(int8_folder(tmp_path))
    target = load_target(folder, "bfloat16")
    twin = float32_twin(target)
    assert all(is_plain(weight) for weight in twin.transformers_model.parameters())
    assert twin.dtype == torch.float32
    ids = torch.tensor([[1, 2, 3]])
    ours, theirs, whole = (
        each.logits(list(each.prefill(ids, each.new_cache(1, 3)))[-1])
        for each in (target, twin, load_target(folder, "float32"))
    )
    assert (theirs - whole).abs().max() < 0.1
    assert 0 < (ours - theirs).abs().max() < 1.0
    ratio = rounding_ratio(target, twin, [1, 2, 3], (4, 6), Sampling())
    assert ratio is not None
    assert ratio > 0


@pytest.mark.parametrize(
    ("method", "package"),
    [
        ({"quant_method": "torchao", "quant_type": {}}, "torchao"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 4}, "optimum"),
        ({"quant_method": "awq", "bits": 4}, "gptqmodel"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
        ({"quant_method": "quanto", "weights": "int8"}, "optimum-quanto"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_M12_a_missing_package_is_named(
    method: dict[str, object], package: str, tmp_path: Path
) -> None:
    if find_spec(package.replace("-", "_")) is not None:
        pytest.skip(f"{package} is installed")
    tiny_model(vocab_size=VOCAB_SIZE).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": method}))
    with pytest.raises(ModelRefused, match=rf"cannot load .* {package}\b") as caught:
        load_target(str(tmp_path))
    assert "\n" not in str(caught.value)
