"""The target on OpenVINO's CPU kernels: the same model in less time, row for row exact.

Knows: stored graphs, number formats, and how tensors are handed over. Does not know: how graphs
are made, trees, sampling.

In every format a verified row has the bits that plain decoding gives it (`export`), up to 1,024
keys: with more, products add in blocks whose borders shift, and rows differ by rounding.

Dimension key: B batch · T rows · C past rows in memory · H hidden size · V vocabulary · R rows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import torch

from entmtp.data.cache import Progress
from entmtp.target.cache import KVCache
from entmtp.target.masks import additive, causal_among
from entmtp.target.model import PREFILL_CHUNK, TargetModel
from entmtp.target.plain import PlainCache
from entmtp.target.runtimes.artefact import Graphs, stored_graphs
from entmtp.target.runtimes.export import shape_groups
from entmtp.target.runtimes.lanes import Lanes
from entmtp.target.runtimes.late_cache import BLOCK, LateCache

_EXACT_KEYS = 1024
"""Up to so many, new ones and unused memory included, a row does not depend on its company."""
_MIN_ROWS = 2
"""One row alone goes through other kernels than two."""
_FIRST_PAST = 3
"""Inputs in front of the past keys: ids, positions, mask."""
_GROUP_SIZE = 32
"""Neighbouring activations that share a scale when they are quantised."""


class _Format(NamedTuple):
    """How numbers are held: OpenVINO's hint, the cache's type, and whether weights are int8."""

    hint: str
    cache: torch.dtype
    is_int8: bool


FORMATS = {
    "float32": _Format("f32", torch.float32, False),
    "bfloat16": _Format("bf16", torch.bfloat16, False),
    "int8": _Format("f32", torch.float32, True),
}


class OpenVinoTarget(TargetModel):
    """A `TargetModel` whose forward is a compiled graph."""

    runtime = "openvino"
    exact_length = _EXACT_KEYS - PREFILL_CHUNK

    def __init__(self, target: TargetModel, number_format: str, progress: Progress) -> None:
        """Export (once) and compile `target`.

        Raises:
            FetchError: the graph cannot be put into the cache.
        """
        super().__init__(
            target.transformers_model,
            target.tokenizer,
            target.name,
            target.layout,
            target.architecture,
            target.shipped_attention,
        )
        self._number_format = number_format
        self._format = FORMATS[number_format]
        self.has_float32_twin = not self._format.is_int8
        self._warm: set[int] = set()
        graphs = stored_graphs(target, number_format, progress)
        progress(f"compiling {target.name} for {number_format}")
        self._groups = shape_groups(self.layout)
        self._body = Lanes(self._read_body(graphs), self._settings(), graphs.folder)
        self._output = (
            None if graphs.output is None else Lanes(graphs.output, self._settings(), graphs.folder)
        )

    @property
    def number_format(self) -> str:
        return self._number_format

    def new_cache(self, batch_size: int, capacity: int) -> LateCache:
        del capacity  # it grows with what is committed
        return LateCache.allocate(
            self.layout, batch_size, BLOCK, dtype=self._format.cache, device=self.device
        )

    def forward(
        self,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        assert isinstance(cache, LateCache), "a cache of new_cache"
        rows = ids.shape[1]
        if rows < _MIN_ROWS:
            ids, positions = ids.expand(-1, _MIN_ROWS), positions.expand(-1, _MIN_ROWS)
            among = torch.eye(_MIN_ROWS, dtype=torch.bool).expand(len(ids), -1, -1)
        inputs = (ids.contiguous(), positions.contiguous(), _mask(cache, among), *cache.memory())
        hidden, new = self._make_outputs(*ids.shape)
        self._body.lane(*ids.shape).run(inputs, (hidden, *new))
        cache.offer(list(zip(new[::2], new[1::2], strict=True)))
        return hidden[:, :rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._output is None:
            return super().logits(hidden)
        flat = hidden.reshape(-1, hidden.shape[-1])
        rows = flat.expand(_MIN_ROWS, -1) if len(flat) == 1 else flat
        logits = torch.empty(len(rows), self.vocab_size)
        self._output.lane(*rows.shape).run((rows.contiguous(),), (logits,))
        return self._output_layer.finish(logits[: len(flat)].reshape(*hidden.shape[:-1], -1))

    def warm_up(self, num_rows: Collection[int]) -> None:
        cache = self.new_cache(1, BLOCK)
        for rows in sorted({max(_MIN_ROWS, rows) for rows in num_rows} - self._warm):
            self._body.add()
            self._warm.add(rows)
            zeros = torch.zeros(1, rows, dtype=torch.long)
            among = causal_among(1, rows, self.device)
            self.logits(self.forward(zeros, zeros, among, cache)[:, :1])

    def _settings(self) -> dict[str, object]:
        return {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "INFERENCE_PRECISION_HINT": self._format.hint,
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP_SIZE if self._format.is_int8 else 0,
        }

    def _read_body(self, graphs: Graphs) -> Any:
        """The body, with the cache's type at its border."""
        import openvino as ov
        from openvino.preprocess import PrePostProcessor

        body = ov.Core().read_model(graphs.body)
        if self._format.cache != torch.bfloat16:
            return body
        border = PrePostProcessor(body)
        for place in range(_FIRST_PAST, len(body.inputs)):
            border.input(place).tensor().set_element_type(ov.Type.bf16)
        for place in range(1, len(body.outputs)):
            border.output(place).tensor().set_element_type(ov.Type.bf16)
        return border.build()

    def _make_outputs(self, batch: int, rows: int) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Memory for hidden states and, for each shape of layers, new keys and values."""
        new = []
        for layers in self._groups:
            shape = self.layout[layers[0]]
            front = (len(layers), batch, shape.num_kv_heads, rows)
            new.append(torch.empty(*front, shape.key_dim, dtype=self._format.cache))
            new.append(torch.empty(*front, shape.value_dim, dtype=self._format.cache))
        return torch.empty(batch, rows, self.hidden_size), new


def _mask(cache: LateCache, among: torch.Tensor) -> torch.Tensor:
    """Visibility `[B, 1, T, C + T]` as numbers to add: the committed rows, then the new ones."""
    batch, rows, _ = among.shape
    lengths = torch.tensor(cache.lengths)[:, None]
    past = (torch.arange(cache.capacity) < lengths)[:, None].expand(batch, rows, -1)
    mask = additive(torch.cat([past, among], -1)[:, None], torch.float32)
    assert mask is not None, "there is a mask"
    return mask
