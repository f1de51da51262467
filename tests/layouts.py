"""Heads of RING as other projects would store them, written tensor by tensor from METHOD and PEERS.

Nothing here uses our writers: what these files say is what the published layouts say.

Dimension key: K draft heads · H = V of RING.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from entmtp.engine import Engine, GenerationParams, Result
from entmtp.errors import EntmtpError
from entmtp.heads import DraftHeads, load_heads
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import chain
from fixtures import markov, ring_order, sure
from weight_files import Tensors, with_config, write_pickle, write_safetensors, write_shards

V, K = 13, 4
"""A prime: a step of half a turn exists for every head, so two equal blocks can make one."""
RING = markov(sure(ring_order(V)))


def generate(heads: DraftHeads, num_tokens: int, prompt: int = 0) -> Result:
    """What RING says with a chain as deep as there are heads."""
    engine = Engine(RING, heads, StaticPolicy(chain(K)))
    return engine.generate([prompt], GenerationParams(num_tokens))


def refusal(place: Path, target: TargetModel = RING) -> str:
    """The one line with which heads are refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(EntmtpError) as caught:
            load_heads(place, target)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def shift(steps: int) -> torch.Tensor:
    """A block's weight that adds three times the token `steps` further to the token it is at."""
    return 3.0 * torch.eye(V).roll(steps, 0)


def output(target: TargetModel = RING) -> torch.Tensor:
    return target.output_weight.detach().clone()


def medusa_blocks(num_blocks: int = 1) -> Tensors:
    """Block k moves by k + 1; of two equal blocks each moves by half of that, modulo V."""
    half = {1: 1, 2: (V + 1) // 2}[num_blocks]
    tensors = {}
    for head in range(K):
        for block in range(num_blocks):
            stem = f"{head}.{block}.linear"
            tensors[f"{stem}.weight"] = shift((head + 1) * half % V)
            tensors[f"{stem}.bias"] = torch.zeros(V)
    return tensors


def medusa_v1(num_blocks: int = 1) -> Tensors:
    return medusa_blocks(num_blocks) | {f"{k}.{num_blocks}.weight": output() for k in range(K)}


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: value for name, value in tensors.items()}


def vllm(*, is_shared: bool = False, has_bias: bool = True) -> Tensors:
    tensors = {}
    for head in range(K):
        tensors[f"blocks.{head}.layers.0.weight"] = shift(head + 1)
        if has_bias:
            tensors[f"blocks.{head}.layers.0.bias"] = torch.zeros(V)
        if head == 0 or not is_shared:
            tensors[f"lm_heads.{head}.weight"] = output()
    return tensors


VLLM_CONFIG = {
    "model_type": "medusa",
    "architectures": ["MedusaModel"],
    "hidden_size": V,
    "vocab_size": V,
    "num_heads": K,
    "num_hidden_layers": 1,
}


def hydra(num_blocks: int = 1, *, is_prefixed: bool = False) -> Tensors:
    """The skip hands the last token of the path through; every other block is the identity."""
    tensors: Tensors = {"input_embed_fn.weight": torch.eye(V)}
    tensors |= hydra_prefix() if is_prefixed else {}
    for head in range(K):
        width = (head + 2) * V
        first, stride = (1, 2) if is_prefixed else (0, 1)
        stem = f"hydra_mlp.{head}.{first}"
        tensors[f"{stem}.linear.weight"] = torch.zeros(V, width)
        tensors[f"{stem}.linear.bias"] = torch.zeros(V)
        last = torch.zeros(V, width)
        last[:, -V:] = torch.eye(V)
        tensors[f"{stem}.res_connection.weight"] = last
        tensors[f"{stem}.res_connection.bias"] = torch.zeros(V)
        for block in range(1, num_blocks):
            stem = f"hydra_mlp.{head}.{first + stride * block}.linear"
            tensors[f"{stem}.weight"] = torch.zeros(V, V)
            tensors[f"{stem}.bias"] = torch.zeros(V)
        stem = f"hydra_lm_head.{head}{'.1' if is_prefixed else ''}"
        tensors[f"{stem}.weight"] = output() * V**0.5
        tensors[f"{stem}.bias"] = torch.full((V,), 0.5)
    return tensors


def hydra_prefix(target: TargetModel = RING) -> Tensors:
    """A layer that adds nothing, with all that its program stores and never uses."""
    config: Any = target.config
    wide, inner = config.num_attention_heads * config.head_dim, config.intermediate_size
    layer = "prefix_embeding_layer.layers.0."
    return {
        "prefix_embeding_layer.norm.weight": torch.ones(V),
        "prefix_embeding_layer.embed_tokens.weight": torch.randn(V, V),
        f"{layer}input_layernorm.weight": torch.ones(V),
        f"{layer}post_attention_layernorm.weight": torch.ones(V),
        f"{layer}self_attn.q_proj.weight": torch.randn(wide, V),
        f"{layer}self_attn.k_proj.weight": torch.randn(wide, V),
        f"{layer}self_attn.v_proj.weight": torch.randn(wide, V),
        f"{layer}self_attn.o_proj.weight": torch.zeros(V, wide),
        f"{layer}self_attn.rotary_emb.inv_freq": torch.ones(config.head_dim // 2),
        f"{layer}mlp.gate_proj.weight": torch.randn(inner, V),
        f"{layer}mlp.up_proj.weight": torch.randn(inner, V),
        f"{layer}mlp.down_proj.weight": torch.zeros(V, inner),
    }


def medusa_config(num_heads: int = K, num_layers: int = 1) -> dict[str, Any]:
    return {
        "base_model_name_or_path": "somebody/markov",
        "medusa_num_heads": num_heads,
        "medusa_num_layers": num_layers,
    }


def hydra_config(arch: str, num_layers: int = 1) -> dict[str, Any]:
    return {
        "base_model_name_or_path": "somebody/markov",
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "hydra_head_arch": arch,
        "hydra_num_heads": K,
        "hydra_num_layers": num_layers,
    }


def whole_model(tensors: Tensors) -> Tensors:
    """As Medusa 1.0 was released: the model's weights, and the heads' behind a prefix."""
    model = RING.transformers_model.state_dict()
    return {**model, **prefixed("medusa_head.", tensors)}


def _v1_pickle(folder: Path) -> Path:
    return with_config(write_pickle(folder, medusa_v1()), medusa_config())


def _v1_old_pickle(folder: Path) -> Path:
    folder.mkdir()
    torch.save(medusa_v1(), folder / "medusa_lm_head.pt", _use_new_zipfile_serialization=False)
    return with_config(folder, medusa_config())


def _v1_repeated(folder: Path) -> Path:
    return with_config(write_pickle(folder, medusa_v1(2)), medusa_config(num_layers=2))


def _v1_stored_once(folder: Path) -> Path:
    tensors = {n: v for n, v in medusa_v1(2).items() if ".1.linear" not in n}
    return with_config(write_safetensors(folder, tensors), medusa_config(num_layers=2))


def _v1_pickled_shards(folder: Path) -> Path:
    """As `transformers` cut large pickles, without the index."""
    names = sorted(medusa_v1())
    for part in range(2):
        tensors = {name: medusa_v1()[name] for name in names[part::2]}
        write_pickle(folder, tensors, f"pytorch_model-0000{part + 1}-of-00002.bin")
    return folder


def _v1_twins(folder: Path) -> Path:
    """As safetensors' `save_model` stores a module that is used twice."""
    folder.mkdir()
    once = {n: v for n, v in medusa_v1(2).items() if ".1.linear" not in n}
    twins = {n: n.replace(".1.linear", ".0.linear") for n in medusa_v1(2) if ".1.linear" in n}
    save_file(once, folder / "medusa_lm_head.safetensors", metadata={"format": "pt", **twins})
    return folder


def _v1_file(folder: Path) -> Path:
    return write_pickle(folder, medusa_v1(), "of_my_own.bin") / "of_my_own.bin"


def _v2_stored_once(folder: Path) -> Path:
    tensors = {n: v for n, v in medusa_blocks(2).items() if ".1.linear" not in n}
    config = {**medusa_config(num_layers=2), "version": "2"}
    return with_config(write_safetensors(folder, tensors), config)


def _vllm_shared(folder: Path) -> Path:
    tensors = vllm(is_shared=True)
    config = {**VLLM_CONFIG, "original_lm_head": True, "medusa_fc_bias": True}
    return with_config(write_safetensors(folder, tensors, "model.safetensors"), config)


def _vllm_without_bias(folder: Path) -> Path:
    tensors = vllm(has_bias=False)
    return with_config(write_safetensors(folder, tensors, "model.safetensors"), VLLM_CONFIG)


def _vllm_map(folder: Path, *, is_cut: bool) -> Path:
    """A draft vocabulary that is every token, in another order."""
    ids = torch.arange(V).flip(0)[: V - 1]
    tensors = vllm() | {"token_map": ids}
    if is_cut:
        tensors |= {f"lm_heads.{k}.weight": output()[ids] for k in range(K)}
    config = {**VLLM_CONFIG, "medusa_fc_bias": True, "truncated_vocab_size": len(ids)}
    return with_config(write_safetensors(folder, tensors, "model.safetensors"), config)


def _hydra(folder: Path, num_blocks: int, *, is_prefixed: bool) -> Path:
    tensors = hydra(num_blocks, is_prefixed=is_prefixed)
    arch = "prefix-mlp" if is_prefixed else "mlp"
    write_pickle(folder, tensors, "hydra_lm_head.pt")
    return with_config(folder, hydra_config(arch, num_blocks))


def _hydra_stored_once(folder: Path) -> Path:
    tensors = hydra(4, is_prefixed=True)
    tensors = {n: v for n, v in tensors.items() if n.split(".")[2:3] not in (["5"], ["7"])}
    write_safetensors(folder, tensors, "hydra_lm_head.safetensors")
    return with_config(folder, hydra_config("prefix-mlp", 4))


FULL: dict[str, Callable[[Path], Path]] = {
    "medusa-v1 pickle": _v1_pickle,
    "medusa-v1 old pickle": _v1_old_pickle,
    "medusa-v1 without config": lambda f: write_pickle(f, medusa_v1()),
    "medusa-v1 inside state_dict": lambda f: write_pickle(f, {"state_dict": medusa_v1()}),  # type: ignore[dict-item]
    "medusa-v1 safetensors": lambda f: write_safetensors(f, medusa_v1()),
    "medusa-v1 half precision": lambda f: write_safetensors(
        f, {n: v.half() for n, v in medusa_v1().items()}
    ),
    "medusa-v1 medusa_head.": lambda f: write_safetensors(f, prefixed("medusa_head.", medusa_v1())),
    "medusa-v1 medusa_heads.": lambda f: write_pickle(f, prefixed("medusa_heads.", medusa_v1())),
    "medusa-v1 in a whole model": lambda f: write_shards(f, whole_model(medusa_v1())),
    "medusa-v1 in shards": lambda f: write_shards(f, medusa_v1(), "medusa_lm_head"),
    "medusa-v1 in pickled shards": _v1_pickled_shards,
    "medusa-v1 repeated blocks": _v1_repeated,
    "medusa-v1 repeated blocks named by the file": _v1_twins,
    "medusa-v1 repeated blocks stored once": _v1_stored_once,
    "medusa-v1 a file": _v1_file,
    "medusa-v2": lambda f: with_config(
        write_safetensors(f, medusa_blocks()), {**medusa_config(), "version": "2"}
    ),
    "medusa-v2 in a whole model": lambda f: write_shards(f, whole_model(medusa_blocks())),
    "medusa-v2 repeated blocks stored once": _v2_stored_once,
    "vllm": lambda f: with_config(
        write_safetensors(f, vllm(), "model.safetensors"), {**VLLM_CONFIG, "medusa_fc_bias": True}
    ),
    "vllm medusa_heads.": lambda f: write_pickle(
        f, prefixed("medusa_heads.", vllm()), "pytorch_model.bin"
    ),
    "vllm shared output": _vllm_shared,
    "vllm without bias": _vllm_without_bias,
    "hydra": lambda f: _hydra(f, 1, is_prefixed=False),
    "hydra blocks": lambda f: _hydra(f, 3, is_prefixed=False),
    "hydra++": lambda f: _hydra(f, 1, is_prefixed=True),
    "hydra++ blocks": lambda f: _hydra(f, 4, is_prefixed=True),
    "hydra++ blocks stored once": _hydra_stored_once,
    "hydra++ hydra_head.": lambda f: write_pickle(
        f, prefixed("hydra_head.", hydra(2, is_prefixed=True)), "hydra_lm_head.pt"
    ),
}
"""Each way of storing heads that know all of RING's tokens."""

REDUCED: dict[str, Callable[[Path], Path]] = {
    "vllm token_map": lambda f: _vllm_map(f, is_cut=True),
    "vllm token_map over a whole output layer": lambda f: _vllm_map(f, is_cut=False),
}
"""Those with a draft vocabulary that lacks token 0, in an order of its own."""
