"""The unmodified model as an OpenVINO graph: rows and past keys in, hidden states and new keys out.

Knows: `transformers`' doors (a cache of ours, a registered attention function, a ready mask) and
the tracer. Does not know: number formats, where graphs are stored or how they run.

The graph keeps no state. Past keys and values come in as they lie in the cache, those of the new
rows go out, and whoever accepts drafts writes down what stays.

Dimension key: B batch · T new rows · M finished blocks of P past rows · N attention heads · G
queries per key/value head · D head size · L layers of one shape.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from entmtp.target.cache import LayerShape
from entmtp.target.gguf_file import quiet
from entmtp.target.runtimes.blocks import BLOCK_ATTENTION, BLOCK_SIZE, SUM_WIDTH, BlockFlow, Past
from entmtp.target.runtimes.rewrite import keep_sums_over_keys_in_float32, merge_products


class _Step(nn.Module):
    """One forward as a function of tensors alone."""

    def __init__(self, body: nn.Module, groups: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self._body = body
        self._groups = groups

    def forward(
        self,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        mask: torch.Tensor,  # [B, 1, T, P + T]
        unfinished: torch.Tensor,  # [B, 1, M, 1, 1]
        inside: torch.Tensor,  # [B, 1, T, 1]
        *past: torch.Tensor,  # keys of every layer, then values; the tails' likewise
    ) -> tuple[torch.Tensor, ...]:
        count = len(past) // 4
        parts = (past[start : start + count] for start in range(0, len(past), count))
        cache = BlockFlow([Past(*layer) for layer in zip(*parts, strict=True)], unfinished, inside)
        with cache.attended():
            hidden = self._body(
                input_ids=ids,
                position_ids=positions,
                attention_mask=mask,
                cache=cache,
                use_cache=True,
            ).last_hidden_state
        outputs = [hidden]
        for layers in self._groups:
            outputs += cache.stacked(layers)
        return tuple(outputs)


def shape_groups(layout: Sequence[LayerShape]) -> list[list[int]]:
    """Layers of equal shape, in the order in which a cache keeps them."""
    return [
        [layer for layer, other in enumerate(layout) if other == shape]
        for shape in dict.fromkeys(layout)
    ]


@torch.inference_mode(False)  # its tensors cannot be traced
@torch.no_grad()
def export_body(model: PreTrainedModel, layout: Sequence[LayerShape]) -> Any:
    """The model without its output layer as an `openvino.Model` in float32.

    Inputs: ids, positions, visibility and memory as a `BlockCache` gives them. Outputs: hidden
    states, then for each shape of layers the new keys and values, `[L, B, N/G, T, D]`.
    """
    import openvino as ov

    twin = copy.deepcopy(model).float()
    twin.set_attn_implementation(BLOCK_ATTENTION)
    batch, rows, blocks = 2, 5, 3  # sizes of the example; every one of them is free afterwards
    ids = torch.zeros(batch, rows, dtype=torch.long)
    past = _example_past(layout, batch, blocks, BLOCK_SIZE)
    past += _example_past(layout, batch, BLOCK_SIZE)
    mask = torch.zeros(batch, 1, rows, BLOCK_SIZE + rows)
    unfinished, inside = torch.zeros(batch, 1, blocks, 1, 1), torch.ones(batch, 1, rows, 1)
    step = _Step(twin.base_model, shape_groups(layout))
    example = (ids, ids + torch.arange(rows), mask, unfinished, inside, *past)
    step(*example)  # a refusal would come out of the tracer as something else
    graph = trace(step, example)
    free = [[-1, -1]] * 2 + [[-1, 1, -1, -1], [-1, 1, -1, 1, 1], [-1, 1, -1, 1]]
    free += [[-1, t.shape[1], *(-1 for _ in t.shape[2:-2]), *t.shape[-2:]] for t in past]
    for node, shape in zip(graph.inputs, free, strict=True):
        node.get_node().set_partial_shape(ov.PartialShape(shape))
    merge_products(graph)
    keep_sums_over_keys_in_float32(graph)
    return graph


def _example_past(layout: Sequence[LayerShape], batch: int, *rows: int) -> list[torch.Tensor]:
    """Keys of every layer, then values with their columns of ones: `[B, N, *rows, D]`."""
    return [
        *(torch.zeros(batch, s.num_kv_heads, *rows, s.key_dim) for s in layout),
        *(torch.zeros(batch, s.num_kv_heads, *rows, s.value_dim + SUM_WIDTH) for s in layout),
    ]


@torch.inference_mode(False)
@torch.no_grad()
def export_output(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
    """The output layer as an `openvino.Model`: hidden states `[R, H]` to logits `[R, V]`."""
    import openvino as ov

    vocab_size, hidden_size = weight.shape
    layer = nn.Linear(hidden_size, vocab_size, bias=bias is not None)
    layer.weight.data = weight.detach().float()
    if bias is not None:
        layer.bias.data = bias.detach().float()
    graph = trace(layer, (torch.zeros(2, hidden_size),))
    graph.inputs[0].get_node().set_partial_shape(ov.PartialShape([-1, hidden_size]))
    graph.validate_nodes_and_infer_types()
    return graph


def trace(module: nn.Module, example: tuple[torch.Tensor, ...]) -> Any:
    """By the PyTorch front end itself: `convert_model` would report its use to its makers."""
    from openvino.frontend import FrontEndManager
    from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

    with _quiet():
        decoder = TorchScriptPythonDecoder(module.eval(), example_input=example)
        front_end = FrontEndManager().load_by_framework("pytorch")
        return front_end.convert(front_end.load(decoder))


@contextmanager
def _quiet() -> Iterator[None]:
    """The tracer warns of each size that it takes for a constant; ours are meant to be.

    And it reads every attribute of a model, of which some make `transformers` talk.
    """
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
