"""Published heads compute what their own programs compute, by the formulas of METHOD §§2.1 and 3.

Random weights, so that nothing is right by symmetry. H hidden size, K heads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import linear, silu
from transformers import LlamaConfig, LlamaModel

from draft_heads import hidden_states
from entmtp.heads import load_heads
from fixtures import tiny
from layouts import hydra_config
from weight_files import Tensors, with_config, write_pickle, write_safetensors

H, VOCAB, K = 64, 24, 3
TARGET = tiny(vocab_size=VOCAB)
HIDDEN = torch.randn(5, H, generator=torch.Generator().manual_seed(0))
PATH = torch.randn(5, K * H, generator=torch.Generator().manual_seed(1))


def random(seed: int, **shapes: tuple[int, ...]) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    return {
        name.replace("__", "."): torch.randn(shape, generator=generator) * 0.2
        for name, shape in shapes.items()
    }


def linear_of(stem: str, out: int, inner: int, seed: int) -> Tensors:
    made = random(seed, weight=(out, inner), bias=(out,))
    return {f"{stem}.{name}": value for name, value in made.items()}


def assert_logits(place: Path, head: int, path: torch.Tensor | None, wanted: torch.Tensor) -> None:
    heads = load_heads(place, TARGET)
    logits = heads.logits(head, heads.features(head, HIDDEN, path))
    # A shift of a whole row changes nothing.
    assert torch.allclose(logits.log_softmax(-1), wanted.log_softmax(-1), atol=1e-4)


@pytest.mark.parametrize("head", range(K))
def test_medusa_v1_and_v2(head: int, tmp_path: Path) -> None:
    tensors: Tensors = {}
    for k in range(K):
        tensors |= linear_of(f"{k}.0.linear", H, H, k)
    block = tensors[f"{head}.0.linear.weight"], tensors[f"{head}.0.linear.bias"]
    state = HIDDEN + silu(linear(HIDDEN, *block))
    with_config(write_safetensors(tmp_path / "2", tensors), {"version": "2"})
    assert_logits(tmp_path / "2", head, None, linear(state, TARGET.output_weight))
    outputs = {f"{k}.1.weight": random(9 + k, w=(VOCAB, H))["w"] for k in range(K)}
    write_pickle(tmp_path / "1", tensors | outputs)
    assert_logits(tmp_path / "1", head, None, linear(state, outputs[f"{head}.1.weight"]))


@pytest.mark.parametrize("head", range(K))
def test_vllm_with_two_different_blocks(head: int, tmp_path: Path) -> None:
    tensors: Tensors = {"token_map": torch.tensor([7, 3, 20])}
    for k in range(K):
        for block in range(2):
            tensors |= linear_of(f"blocks.{k}.layers.{block}", H, H, 2 * k + block)
        tensors[f"lm_heads.{k}.weight"] = random(9 + k, w=(3, H))["w"]
    state = HIDDEN
    for block in range(2):
        stem = f"blocks.{head}.layers.{block}"
        state = state + silu(linear(state, tensors[f"{stem}.weight"], tensors[f"{stem}.bias"]))
    write_safetensors(tmp_path, tensors, "model.safetensors")
    assert_logits(tmp_path, head, None, linear(state, tensors[f"lm_heads.{head}.weight"]))
    assert load_heads(tmp_path, TARGET).to_target_ids(torch.arange(3)).tolist() == [7, 3, 20]


def hydra_tensors(is_prefixed: bool) -> Tensors:
    tensors: Tensors = {}
    first, stride = (1, 2) if is_prefixed else (0, 1)
    for k in range(K):
        for what in ("linear", "res_connection"):
            stem = f"hydra_mlp.{k}.{first}.{what}"
            tensors |= linear_of(stem, H, (k + 2) * H, len(stem) + k)
        for block in (1, 2):  # one module twice
            tensors |= linear_of(f"hydra_mlp.{k}.{first + stride * block}.linear", H, H, 50 + k)
        stem = f"hydra_lm_head.{k}{'.1' if is_prefixed else ''}"
        tensors |= linear_of(stem, VOCAB, H, 70 + k)
    return tensors


def hydra_logits(tensors: Tensors, head: int, context: torch.Tensor, first: int) -> torch.Tensor:
    def apply(stem: str, state: torch.Tensor) -> torch.Tensor:
        return linear(state, tensors[f"{stem}.weight"], tensors[f"{stem}.bias"])

    stem, given = f"hydra_mlp.{head}", torch.cat([context, PATH[:, : (head + 1) * H]], -1)
    state = apply(f"{stem}.{first}.res_connection", given)
    state = state + silu(apply(f"{stem}.{first}.linear", given))
    again = f"{stem}.{3 if first else 1}.linear"
    for _ in range(2):
        state = state + silu(apply(again, state))
    return apply(f"hydra_lm_head.{head}{'.1' if first else ''}", state)


@pytest.mark.parametrize("head", range(K))
def test_hydra(head: int, tmp_path: Path) -> None:
    tensors = hydra_tensors(is_prefixed=False)
    with_config(
        write_pickle(tmp_path, tensors, "hydra_lm_head.pt"),
        hydra_config("mlp", 3)
        | {
            "hydra_num_heads": K,
            "base_model_name_or_path": "tiny-llama",
        },
    )
    path = PATH[:, : (head + 1) * H]
    assert_logits(tmp_path, head, path, hydra_logits(tensors, head, HIDDEN, 0))


def test_hydra_plus_plus_passes_hidden_states_through_its_own_layer(tmp_path: Path) -> None:
    config: Any = TARGET.config
    layer = LlamaModel(LlamaConfig(**{**config.to_dict(), "num_hidden_layers": 1}))
    for value in layer.parameters():
        value.data.mul_(5.0 if value.ndim == 2 else 1.0)
    prefix = {f"prefix_embeding_layer.{n}": v for n, v in layer.state_dict().items()}
    tensors = hydra_tensors(is_prefixed=True) | prefix
    tensors["input_embed_fn.weight"] = TARGET.embedding_weight.detach().clone()
    heads = load_heads(write_pickle(tmp_path, tensors, "hydra_lm_head.pt"), TARGET)
    assert heads.kind == "hydra++"
    hidden = hidden_states(TARGET, torch.tensor([[1, 5, 2, 9, 4]]))
    with torch.no_grad():
        wanted = layer(inputs_embeds=hidden).last_hidden_state
    assert torch.allclose(heads.context(hidden), wanted, atol=1e-5)
    assert not torch.allclose(wanted, hidden, atol=0.1)
    for head in range(K):
        features = heads.features(head, wanted[0], PATH[:, : (head + 1) * H])
        logits = heads.logits(head, features)
        assert torch.allclose(logits, hydra_logits(tensors, head, wanted[0], 1), atol=1e-4)
