"""Even channels: the same function before rounding, nearer to it behind, and measured once."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from entmtp.data.cache import CACHE_VARIABLE, silent
from entmtp.errors import FetchError
from entmtp.target import TargetModel
from entmtp.target.runtimes.native import NativeTarget, smoothing
from entmtp.target.runtimes.native.smoothing import factors_of, measure, smoothed
from fixtures import tiny_model
from runtimes import needs_native

ARCHS = ["llama", "qwen2", "qwen3"]
FULL_OF = 40.0
"""What a few channels are larger by, as some are in every trained model."""


def uneven(arch: str = "llama", size: int = 64) -> TargetModel:
    """A model of which a few channels are always large, where rows are made and where they meet."""
    model = tiny_model(arch, hidden_size=size, num_attention_heads=2, num_key_value_heads=1)
    with torch.no_grad():
        for layer in model.model.layers:
            for norm in (layer.input_layernorm, layer.post_attention_layernorm):
                norm.weight[3::17] *= FULL_OF
            layer.mlp.up_proj.weight[5::19] *= FULL_OF
    return TargetModel.from_transformers(model, name="uneven")


def states(target: TargetModel) -> torch.Tensor:
    ids = torch.randint(8, (1, 100), generator=torch.Generator().manual_seed(1))
    return torch.cat(list(target.prefill(ids, target.new_cache(1, 100))), 1)


@pytest.mark.parametrize("arch", ARCHS)
@torch.inference_mode()
def test_smoothed_layers_are_the_same_function(arch: str) -> None:
    target = uneven(arch)
    before = states(target)
    factors = measure(target)
    assert any((one.attention != 1).any() and (one.down != 1).any() for one in factors)
    other = copy.deepcopy(target.transformers_model)
    for layer, some in zip(other.model.layers, factors, strict=True):
        even = smoothed(layer, some)
        for place in ("q_proj", "k_proj", "v_proj", "o_proj"):
            _take(getattr(layer.self_attn, place), getattr(even.self_attn, place))
        for place in ("gate_proj", "up_proj", "down_proj"):
            _take(getattr(layer.mlp, place), getattr(even.mlp, place))
        layer.input_layernorm.weight.copy_(even.input_layernorm.weight)
        layer.post_attention_layernorm.weight.copy_(even.post_attention_layernorm.weight)
    after = states(TargetModel.from_transformers(other))
    assert (before - after).abs().max() < 1e-4 * before.std()


def _take(linear: torch.nn.Linear, given: torch.nn.Linear) -> None:
    linear.weight.copy_(given.weight)
    if given.bias is not None:
        linear.bias.copy_(given.bias)


def test_a_channel_that_is_always_large_is_divided() -> None:
    for one in measure(uneven()):
        for factor, large in ((one.attention, slice(3, None, 17)), (one.mlp, slice(3, None, 17))):
            assert factor[large].log().mean() - factor.log().mean() > 1
            exponents = 4 * factor.log2()
            assert (exponents - exponents.round()).abs().max() < 1e-4, "quarters of powers of two"


@needs_native
@torch.inference_mode()
def test_int8_is_nearer_to_the_model_with_even_channels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    target = uneven(size=128)
    exact = states(target)
    even = states(NativeTarget(target, "int8", silent))
    monkeypatch.setattr("entmtp.target.runtimes.native.target.factors_of", lambda *_: None)
    raw = states(NativeTarget(target, "int8", silent))
    assert (even - exact).abs().mean() < 0.8 * (raw - exact).abs().mean()


def test_factors_are_measured_once_and_anew_where_the_file_is_broken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    target, said = uneven(), list[str]()
    first = factors_of(target, said.append)
    assert said == ["measuring how large the inputs of uneven's layers get"]
    monkeypatch.setattr(smoothing, "measure", lambda _: pytest.fail("measured again"))
    again = factors_of(target, said.append)
    assert len(said) == 1
    for one, other in zip(first, again, strict=True):
        assert all(map(torch.equal, one, other))
    monkeypatch.undo()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    (file,) = tmp_path.glob("smoothing-*/*.safetensors")
    file.write_bytes(bytes(file.stat().st_size))
    assert len(factors_of(target, said.append)) == len(first)
    assert len(said) == 2
    assert len(factors_of(target, said.append)) == len(first)
    assert len(said) == 2, "what was measured anew is kept"


def test_a_cache_that_cannot_be_written_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> object:
        raise FetchError("cannot write to the cache")

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(smoothing, "new_folder", refuse)
    assert len(factors_of(uneven(), silent)) == 3
    assert "measures again: cannot write to the cache" in caplog.text
