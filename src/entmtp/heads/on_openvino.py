"""Draft heads on OpenVINO's CPU kernels, beside a target that runs there.

Knows: how the parts of heads become graphs, and what rows those are run with. Does not know:
trees, who chooses among logits, caches beyond one layer's.

Heads in PyTorch beside a target on OpenVINO would be slow: two pools of threads want the same
cores. A draft need not be exact, so heads take the target's number format, int8 included.

Dimension key: B batch · A new tokens · N rows · K draft heads · H hidden size · C past rows ·
W draft vocabulary.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from entmtp.data.cache import Progress
from entmtp.heads.base import DraftHeads, HeadKernels
from entmtp.heads.hydra import HydraHeads
from entmtp.heads.level import Children, choose
from entmtp.target.cache import KVCache, LayerShape
from entmtp.target.masks import causal_among
from entmtp.target.model import TargetModel
from entmtp.target.runtimes.artefact import hash_of_tensors, save_graph, stored
from entmtp.target.runtimes.chain import chain_attention
from entmtp.target.runtimes.export import trace
from entmtp.target.runtimes.flow import Flow
from entmtp.target.runtimes.lanes import Lanes
from entmtp.target.runtimes.late_cache import BLOCK, LateCache
from entmtp.target.runtimes.openvino import cpu_settings
from entmtp.target.runtimes.rewrite import merge_products

NUM_CHILDREN = 16
"""Best children that a graph picks by itself; more are picked from its logits."""
_PREFIX = "prefix.xml"


def draft_on_openvino(heads: DraftHeads, target: TargetModel, progress: Progress) -> None:
    """Let bound `heads` compute on OpenVINO from now on.

    Raises:
        FetchError: the graphs cannot be put into the cache.
    """
    heads.kernels = None  # those of other weights
    heads.kernels = _OpenVinoKernels(heads, target.number_format, progress)


class _OpenVinoKernels(HeadKernels):
    """One graph for each head whose draft needs the path, or one for all heads; one for a prefix
    layer."""

    def __init__(self, heads: DraftHeads, number_format: str, progress: Progress) -> None:
        self._num_rows = heads.num_draft_heads + 1
        self._among = causal_among(1, self._num_rows, torch.device("cpu"))
        self._offsets = torch.arange(self._num_rows)
        source = {
            "number_format": number_format,
            "weights": hash_of_tensors(heads.state_dict() | _rows_of_target(heads)),
            "config": repr(heads.config),
        }

        def export(folder: Path) -> None:
            progress(f"exporting {heads.kind} heads to OpenVINO, {number_format} (once)")
            _export(heads, folder, number_format)

        folder = stored(f"openvino-heads-{source['weights'][:16]}-{number_format}", source, export)
        settings = cpu_settings(number_format)
        names = sorted(path for path in folder.glob("level-*.xml"))
        self._levels = [Lanes(name, settings, folder) for name in names]
        self._prefix: Lanes | None = None
        if isinstance(heads, HydraHeads) and heads.prefix is not None:
            self._layout = [heads.prefix.layout]
            self._prefix = Lanes(folder / _PREFIX, settings, folder, self._prefix_shapes)
            self._prefix.pin(1, self._num_rows, heads.hidden_size)
        self._num_logits = heads.config.draft_vocab_size
        self._num_children = min(NUM_CHILDREN, self._num_logits)
        self._num_heads = heads.num_draft_heads
        self._draft_ids = heads.draft_ids
        self._outputs: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}

    def children(
        self, head: int, context: torch.Tensor, path: torch.Tensor, num_ranks: int
    ) -> Children:
        batch, parents, _ = path.shape
        inputs = [part.reshape(batch * parents, -1).float() for part in (context, path)]
        logits, ids, log_probs = self._run(self._levels[head], inputs, (batch, parents))
        if num_ranks > NUM_CHILDREN:
            return choose(logits, num_ranks, self._draft_ids)
        return Children(ids, log_probs)

    def children_of_all(self, context: torch.Tensor, num_ranks: Sequence[int]) -> list[Children]:
        front = self._num_heads, len(context), 1
        logits, ids, log_probs = self._run(self._levels[0], (context.float(),), front)
        return [
            choose(logits[head], count, self._draft_ids)
            if count > NUM_CHILDREN
            else Children(ids[head], log_probs[head])
            for head, count in enumerate(num_ranks)
        ]

    def _run(
        self, lanes: Lanes, inputs: Sequence[torch.Tensor], front: tuple[int, ...]
    ) -> list[torch.Tensor]:
        """Logits, ids and log-probabilities `[*front, …]`, good until the next run of that size."""
        num_rows = math.prod(front)
        outputs = self._outputs.get((id(lanes), num_rows))
        if outputs is None:
            outputs = (
                torch.empty(num_rows, self._num_logits),
                torch.empty(num_rows, self._num_children, dtype=torch.long),
                torch.empty(num_rows, self._num_children),
            )
            self._outputs[id(lanes), num_rows] = outputs
        lanes.lane().run(inputs, outputs)
        return [one.view(*front, -1) for one in outputs]

    def new_cache(self, batch_size: int) -> LateCache | None:
        if self._prefix is None:
            return None
        device = torch.device("cpu")
        return LateCache.allocate(
            self._layout, batch_size, BLOCK, dtype=torch.float32, device=device
        )

    def extend(self, hidden: torch.Tensor, cache: KVCache, counts: Sequence[int]) -> torch.Tensor:
        assert isinstance(cache, LateCache), "a cache of new_cache"
        assert self._prefix is not None, "these heads have no prefix layer"
        wanted = hidden.shape[1]
        # One size for whatever a step has accepted: a lane is made for it.
        hidden = _at_least(hidden.float(), self._num_rows)
        batch, rows, _ = hidden.shape
        if (batch, rows) == (1, self._num_rows):
            positions, among = self._offsets[None] + cache.length, self._among
        else:
            positions = torch.tensor(cache.lengths)[:, None] + torch.arange(rows)
            among = causal_among(batch, rows, hidden.device)
        shape = self._layout[0]
        front = (1, batch, shape.num_kv_heads, rows)
        lane = self._prefix.lane(*hidden.shape)
        contexts = lane.own_output(0, hidden.shape)
        keys = lane.own_output(1, (*front, shape.key_dim))
        values = lane.own_output(2, (*front, shape.value_dim))
        inputs = (hidden, positions, cache.mask(among))
        lane.run(inputs, (contexts, keys, values), cache.memory())
        cache.offer([(keys, values)])
        cache.advance(counts)
        return torch.empty_like(contexts[:, :wanted]).copy_(contexts[:, :wanted])

    def _prefix_shapes(self, sizes: Sequence[int]) -> list[list[int]]:
        batch, rows, hidden_size = sizes
        shape: LayerShape = self._layout[0]
        past = [batch, shape.num_kv_heads, -1]
        return [
            [batch, rows, hidden_size],
            [batch, rows],
            [batch, 1, rows, -1],
            [*past, shape.key_dim],
            [*past, shape.value_dim],
        ]


def _at_least(hidden: torch.Tensor, rows: int) -> torch.Tensor:
    """`[B, A, H]` with so many rows, if there are fewer; those are not looked at."""
    if hidden.shape[1] == 1:
        return hidden.expand(-1, rows, -1)
    return pad(hidden, (0, 0, 0, max(0, rows - hidden.shape[1])))


def _rows_of_target(heads: DraftHeads) -> dict[str, torch.Tensor]:
    """What the graphs hold of the target."""
    rows = {"output_rows": heads.output_rows, "output_row_bias": heads.output_row_bias}
    return {name: tensor for name, tensor in rows.items() if tensor is not None}


@torch.inference_mode(False)  # its tensors cannot be traced
@torch.no_grad()
def _export(heads: DraftHeads, folder: Path, number_format: str) -> None:
    twin = copy.deepcopy(heads).float().eval()
    size, rows = twin.hidden_size, 3
    if not twin.needs_path:
        graph = _traced(_AllHeads(twin), (torch.zeros(rows, size),))
        save_graph(graph, folder / "level-00.xml", number_format)
        return
    for head in range(twin.num_draft_heads):
        example = torch.zeros(rows, size), torch.zeros(rows, (head + 1) * size)
        graph = _traced(_OneHead(twin, head), example)
        save_graph(graph, folder / f"level-{head:02}.xml", number_format)
    if isinstance(twin, HydraHeads) and twin.prefix is not None:
        save_graph(_prefix_graph(twin), folder / _PREFIX, number_format)


def _traced(module: nn.Module, example: tuple[torch.Tensor, ...]) -> Any:
    """The graph of a module whose inputs are rows `[N, …]`, as many as wanted."""
    graph = trace(module, example)
    graph.reshape({node: [-1, t.shape[1]] for node, t in zip(graph.inputs, example, strict=True)})
    merge_products(graph)
    return graph


def _prefix_graph(heads: HydraHeads) -> Any:
    import openvino as ov

    assert heads.prefix is not None
    heads.prefix.body.attention = chain_attention
    batch, rows, past, shape = 2, 5, 7, heads.prefix.layout
    example = (
        torch.zeros(batch, rows, heads.hidden_size),
        torch.arange(rows).repeat(batch, 1),
        torch.zeros(batch, 1, rows, past + rows),
        torch.zeros(batch, shape.num_kv_heads, past, shape.key_dim),
        torch.zeros(batch, shape.num_kv_heads, past, shape.value_dim),
    )
    graph = trace(_Prefix(heads.prefix.body), example)
    free = [
        [-1, -1, heads.hidden_size],
        [-1, -1],
        [-1, 1, -1, -1],
        [-1, shape.num_kv_heads, -1, shape.key_dim],
        [-1, shape.num_kv_heads, -1, shape.value_dim],
    ]
    for node, sizes in zip(graph.inputs, free, strict=True):
        node.get_node().set_partial_shape(ov.PartialShape(sizes))
    graph.validate_nodes_and_infer_types()
    merge_products(graph)
    return graph


class _Level(nn.Module):
    """What every graph of logits ends in: they themselves, the best, and how likely those are."""

    def __init__(self, heads: DraftHeads) -> None:
        super().__init__()
        self._heads = heads
        self._num_children = min(NUM_CHILDREN, heads.config.draft_vocab_size)

    def _choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ids, log_probs = choose(logits, self._num_children, self._heads.draft_ids)
        return logits, ids, log_probs


class _OneHead(_Level):
    """Rows of context and path to one head's children."""

    def __init__(self, heads: DraftHeads, head: int) -> None:
        super().__init__(heads)
        self._head = head

    def forward(
        self, context: torch.Tensor, path: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        features = self._heads.features(self._head, context, path)
        return self._choose(self._heads.logits(self._head, features))


class _AllHeads(_Level):
    """Contexts `[B, H]` to the children of each head in turn, where they need nothing else."""

    def forward(self, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads = self._heads
        features = [heads.features(k, context, None) for k in range(heads.num_draft_heads)]
        if heads.config.output == "own":
            logits = torch.cat([heads.logits(k, one) for k, one in enumerate(features)])
        else:  # one product with the rows that all heads share
            logits = heads.logits(0, torch.cat(features))
        return self._choose(logits)


class _Prefix(nn.Module):
    """One step of a prefix layer as a function of tensors alone."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self._body = body

    def forward(
        self,
        hidden: torch.Tensor,  # [B, A, H]
        positions: torch.Tensor,  # [B, A]
        mask: torch.Tensor,  # [B, 1, A, C + A]
        keys: torch.Tensor,  # [B, N, C, D]
        values: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        cache = Flow([(keys, values)])
        contexts = self._body(hidden, positions, mask, cache)
        new_keys, new_values = cache.new[0]
        return contexts, new_keys[None], new_values[None]
