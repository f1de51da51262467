"""Channels made even before a matrix becomes int8: what is large in rows is taken over by weights.

Knows: how large the inputs of a layer's products get on a sample of ids, and which weights take a
factor in and which give it up. Does not know: how matrices are packed, who measures time.

In int8 the numbers of a group share one scale, which follows the largest of them; a channel that is
always large takes the digits of its neighbours. So a channel's inputs are divided by a factor, in
the weights that make them, and the weights that meet them are multiplied by it: `sqrt(largest input
/ largest weight)` (SmoothQuant, arXiv 2211.10438, with an exponent of one half). Before rounding it
is the same function.

Dimension key: H hidden size · F inner size · O outputs · I inputs.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from entmtp.data.cache import cache_dir, is_complete, new_folder, write_manifest
from entmtp.errors import FetchError
from entmtp.target.code import code_digest
from entmtp.target.model import TargetModel

_SAMPLES, _LENGTH = 8, 128
"""Rows of random ids that inputs are measured on, and how long they are. They do nearly as well as
text, and need no tokenizer."""
_STEPS = 4
"""Of factors from one power of two to the next, so that a sample's last bits hardly ever matter."""
_SMALLEST = 1e-5
_FILE = "factors.safetensors"
_log = logging.getLogger(__name__)


class LayerFactors(NamedTuple):
    """What the inputs of a layer's products are divided by, channel by channel."""

    attention: torch.Tensor  # [H], of query, key and value
    mlp: torch.Tensor  # [H], of gate and up
    down: torch.Tensor  # [F]


def smoothed(layer: Any, factors: LayerFactors) -> SimpleNamespace:
    """A layer of the same function whose channels are even, in the parts that `weights` packs."""
    attention, mlp = layer.self_attn, layer.mlp

    def norm(given: Any, factor: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(weight=given.weight.detach().float() / factor)

    def linear(
        given: Any, takes: torch.Tensor, gives: torch.Tensor | None = None
    ) -> SimpleNamespace:
        weight, bias = given.weight.detach().float() * takes, given.bias
        if gives is not None:
            weight = weight / gives[:, None]
            bias = None if bias is None else bias.detach().float() / gives
        return SimpleNamespace(weight=weight, bias=bias)

    inputs = {
        name: linear(getattr(attention, name), factors.attention)
        for name in ("q_proj", "k_proj", "v_proj")
    }
    return SimpleNamespace(
        self_attn=SimpleNamespace(
            **inputs,
            o_proj=attention.o_proj,
            q_norm=getattr(attention, "q_norm", None),
            k_norm=getattr(attention, "k_norm", None),
        ),
        mlp=SimpleNamespace(
            gate_proj=linear(mlp.gate_proj, factors.mlp),
            up_proj=linear(mlp.up_proj, factors.mlp, factors.down),
            down_proj=linear(mlp.down_proj, factors.down),
        ),
        input_layernorm=norm(layer.input_layernorm, factors.attention),
        post_attention_layernorm=norm(layer.post_attention_layernorm, factors.mlp),
    )


def factors_of(target: TargetModel, progress: Callable[[str], None]) -> list[LayerFactors]:
    """The factors of every layer, measured once for a checkpoint and kept in the user's cache.

    Args:
        target: of the unmodified model, with layers that `weights.misfit` finds nothing against.
    """
    source = {
        "weights": target.fingerprint,
        "dtype": str(target.dtype),
        "code": code_digest(),
        "torch": torch.__version__,
    }
    name = hashlib.sha256(repr(source).encode()).hexdigest()[:16]
    folder = cache_dir() / f"smoothing-{name}"
    if is_complete(folder, source):
        try:
            return _listed(load_file(folder / _FILE))
        except (OSError, SafetensorError, KeyError) as error:
            _log.warning("%s is broken (%s); measuring anew", folder / _FILE, error)
            shutil.rmtree(folder, ignore_errors=True)
    progress(f"measuring how large the inputs of {target.name}'s layers get")
    factors = measure(target)
    try:
        with new_folder(folder, source) as part:
            save_file(_named(factors), part / _FILE)
            write_manifest(part, source)
    except FetchError as error:
        _log.warning("the next start with %s measures again: %s", target.name, error)
    return factors


@torch.inference_mode()
def measure(target: TargetModel) -> list[LayerFactors]:
    """The factors of every layer, by its inputs on random ids."""
    layers: Any = target.transformers_model.base_model.layers
    generator = torch.Generator().manual_seed(0)
    length = min(_LENGTH, target.max_length)
    samples = torch.randint(target.vocab_size, (_SAMPLES, 1, length), generator=generator)
    inputs = [(one.self_attn.q_proj, one.mlp.gate_proj, one.mlp.down_proj) for one in layers]
    with _largest_inputs([linear for some in inputs for linear in some]) as largest:
        for ids in samples:
            for _ in target.prefill(ids.to(target.device), target.new_cache(1, length)):
                pass
    return [
        LayerFactors(
            attention=_factor(
                largest[one.self_attn.q_proj],
                [one.self_attn.q_proj, one.self_attn.k_proj, one.self_attn.v_proj],
            ),
            mlp=_factor(largest[one.mlp.gate_proj], [one.mlp.gate_proj, one.mlp.up_proj]),
            down=_factor(largest[one.mlp.down_proj], [one.mlp.down_proj]),
        )
        for one in layers
    ]


@contextmanager
def _largest_inputs(linears: Sequence[nn.Module]) -> Iterator[dict[nn.Module, torch.Tensor]]:
    """The largest size of each input channel `[I]` of modules that run inside the block."""
    largest: dict[nn.Module, torch.Tensor] = {}

    def see(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        sizes = inputs[0].detach().float().abs().flatten(0, -2).amax(0).cpu()
        largest[module] = torch.maximum(largest.get(module, sizes), sizes)

    hooks = [linear.register_forward_pre_hook(see) for linear in linears]
    try:
        yield largest
    finally:
        for hook in hooks:
            hook.remove()


def _factor(inputs: torch.Tensor, linears: Sequence[Any]) -> torch.Tensor:
    """Of input channels `[I]` that these linears share; their product is about one."""
    largest = [linear.weight.detach().float().abs().amax(0).cpu() for linear in linears]
    weights = torch.stack(largest).amax(0)
    exponents = (inputs.clamp_min(_SMALLEST).log2() - weights.clamp_min(_SMALLEST).log2()) / 2
    return torch.exp2(((exponents - exponents.mean()) * _STEPS).round() / _STEPS)


def _named(factors: Sequence[LayerFactors]) -> dict[str, torch.Tensor]:
    return {
        f"{place}.{name}": value
        for place, one in enumerate(factors)
        for name, value in one._asdict().items()
    }


def _listed(tensors: dict[str, torch.Tensor]) -> list[LayerFactors]:
    return [
        LayerFactors(*(tensors[f"{place}.{name}"] for name in LayerFactors._fields))
        for place in range(len(tensors) // len(LayerFactors._fields))
    ]
