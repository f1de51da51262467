"""The decoder layers of an unmodified model, each as a function of tensors alone.

Knows: how a body calls its layers, found by watching it do so, and which layers are the same but
for their weights. Does not know: compilers, files, number formats.

A body's layers are one code with other weights. So one layer of each kind is traced, with its
weights among the inputs, and what is made of that trace serves all layers of the kind. The body
itself stays as it is and runs in Python: embedding, rotary tables, a loop, a norm.

Dimension key: B batch · T new rows · C past rows · S = C + T · N key/value heads · D head size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import Cache

from entmtp.errors import ModelRefused
from entmtp.target.cache import LayerShape
from entmtp.target.linears import twin
from entmtp.target.runtimes.chain import CHAIN_ATTENTION
from entmtp.target.runtimes.flow import Flow, OneLayer

AUTO = torch.export.Dim.AUTO
"""Marks a size that is free."""

Tensors = Sequence[torch.Tensor]
Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]

_SIZES = ((2, 5, 7), (3, 9, 19))
"""B, T, C of two forwards that are watched: what differs between them is free."""
_OWN_NAMES = frozenset({"layer_idx", "training", "forward"})
"""Attributes that may differ between layers of one kind."""
_SIMPLE = (bool, int, float, str, type(None), tuple)


class Call(NamedTuple):
    """How a body calls a layer: everything but tensors as it is, and what comes back."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any

    def tensors(self) -> list[torch.Tensor]:
        return list(_tensors((self.args, self.kwargs)))


class Region(NamedTuple):
    """One kind of layer, ready to be traced."""

    layer: nn.Module
    call: Call
    free: list[dict[int, Any]]
    """Of each tensor of the call: which of its sizes are free"""
    kind: str
    """What makes it this kind"""
    places: list[int]
    """The layers that are of it"""

    def past(self) -> Tensors:
        """Past keys and values as they came with the call."""
        (flow,) = (e for e in (*self.call.args, *self.call.kwargs.values()) if isinstance(e, Flow))
        keys, values = flow.past[self.places[0]]
        return keys, values


def with_chain_attention(body: nn.Module) -> Any:
    """The same body with that attention. Every tensor is shared."""
    copied = twin(body, lambda _: None)
    configs: dict[int, Any] = {}
    for part in copied.modules():
        config: Any = getattr(part, "config", None)
        if hasattr(config, "_attn_implementation"):
            ours = configs.setdefault(id(config), copy.copy(config))
            ours._attn_implementation = CHAIN_ATTENTION
            part.__dict__["config"] = ours
    return copied


def layers_of(body: nn.Module, count: int) -> list[nn.Module]:
    """The decoder layers, in their order.

    Raises:
        ModelRefused: the body does not keep them in a list.
    """
    for part in body.modules():
        if isinstance(part, nn.ModuleList) and len(part) == count:
            return list(part)
    raise ModelRefused("the compiled runtime finds no list of layers here; use --runtime eager")


def regions_of(body: nn.Module, layout: Sequence[LayerShape]) -> list[Region]:
    """The kinds of layers in `body`, each with one of its layers."""
    layers = layers_of(body, len(layout))
    small, large = (_watch(body, layers, layout, *sizes) for sizes in _SIZES)
    places: dict[str, list[int]] = {}
    for place, layer in enumerate(layers):
        kind = f"{layout[place]} {_describe(layer)} {_describe_call(small[place])}"
        places.setdefault(kind, []).append(place)
    return [
        Region(
            layers[same[0]],
            small[same[0]],
            _free_sizes(small[same[0]], large[same[0]]),
            kind,
            same,
        )
        for kind, same in places.items()
    ]


class RegionFunction(nn.Module):
    """A region as a function of: the call's tensors, past keys, past values, every weight.

    Gives the output's tensors, then the new keys and the new values.
    """

    def __init__(self, layer: nn.Module, call: Call, names: Sequence[str]) -> None:
        super().__init__()
        self._layer = (layer,)  # no submodule: its weights come as inputs
        self._call = call
        self._names = names

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = iter(tensors)
        args, kwargs = _filled((self._call.args, self._call.kwargs), values)
        flow = OneLayer([(next(values), next(values))])
        args = tuple(flow if isinstance(each, Cache) else each for each in args)
        kwargs = {k: flow if isinstance(each, Cache) else each for k, each in kwargs.items()}
        weights = dict(zip(self._names, values, strict=True))
        output = torch.func.functional_call(self._layer[0], weights, args, kwargs)
        return (*_tensors(output), *flow.new[0])


def stand_in(layer: nn.Module, place: int, call: Call, run: Run, weights: Tensors) -> nn.Module:
    """A layer that looks like `layer` and is computed by `run`."""

    dtypes = [tensor.dtype for tensor in call.tensors()]

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = [tensor.contiguous() for tensor in _tensors((args, kwargs))]
        assert [tensor.dtype for tensor in given] == dtypes, "machine code reads what it is given"
        (flow,) = (each for each in (*args, *kwargs.values()) if isinstance(each, Flow))
        *output, keys, values = run([*given, *flow.past[place], *weights])
        flow.new[place] = keys, values
        return _filled(call.output, iter(output))

    other = copy.copy(layer)
    other._modules, other._parameters, other._buffers = {}, {}, {}
    other.__dict__["forward"] = forward
    return other


def _watch(
    body: Any, layers: Sequence[nn.Module], layout: Sequence[LayerShape], *sizes: int
) -> list[Call]:
    """One forward of B x T rows behind C past ones: how it calls each layer."""
    batch, rows, past = sizes
    calls: list[Call] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        calls.append(Call(args, kwargs, output))

    like = next(body.parameters())
    ids = torch.zeros(batch, rows, dtype=torch.long)
    flow = Flow(
        [
            (
                like.new_zeros(batch, shape.num_kv_heads, past, shape.key_dim),
                like.new_zeros(batch, shape.num_kv_heads, past, shape.value_dim),
            )
            for shape in layout
        ]
    )
    hooks = [layer.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        body(
            input_ids=ids,
            position_ids=ids + torch.arange(rows),
            attention_mask=torch.zeros(batch, 1, rows, past + rows),
            cache=flow,
            use_cache=True,
        )
    finally:
        for hook in hooks:
            hook.remove()
    if len(calls) != len(layers):
        raise ModelRefused(
            "the compiled runtime finds layers that are not called once each; use --runtime eager"
        )
    return calls


def _free_sizes(call: Call, other: Call) -> list[dict[int, Any]]:
    """Of each tensor: the sizes in which two calls differ."""
    return [
        {dim: AUTO for dim in range(a.dim()) if a.shape[dim] != b.shape[dim]}
        for a, b in zip(call.tensors(), other.tensors(), strict=True)
    ]


def _describe(layer: nn.Module) -> str:
    """All that makes a layer compute what it computes, but for the values of its weights."""
    lines = []
    for name, part in layer.named_modules():
        simple = {
            key: value
            for key, value in vars(part).items()
            if isinstance(value, _SIMPLE) and key not in _OWN_NAMES
        }
        lines.append(f"{name} {type(part).__qualname__} {sorted(simple.items(), key=str)}")
    tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
    lines += [f"{name} {t.dtype} {tuple(t.shape)}" for name, t in tensors.items()]
    return "\n".join(lines)


def _describe_call(call: Call) -> str:
    shapes = [(tuple(tensor.shape), tensor.dtype) for tensor in call.tensors()]
    rest = [each for each in (*call.args, *call.kwargs.items()) if isinstance(each, _SIMPLE)]
    return f"{shapes} {rest}"


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in tuples, lists and dictionaries, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))


def _filled(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The same with other tensors in their places."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, (tuple, list)):
        return type(value)(_filled(each, tensors) for each in value)
    if isinstance(value, Mapping):
        return {key: _filled(each, tensors) for key, each in value.items()}
    return value
