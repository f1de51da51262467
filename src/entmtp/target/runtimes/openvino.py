"""The target on OpenVINO's CPU kernels: the same model in less time, row for row exact.

Knows: stored graphs, number formats, and how tensors are handed over. Does not know: how graphs
are made, trees, sampling.

In every format a verified row has the bits that plain decoding gives it (`blocks`).

Dimension key: B batch · T rows · M finished blocks of P past rows in memory · H hidden size · V
vocabulary · R rows.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch.nn.functional import pad

from entmtp.data.cache import Progress
from entmtp.target.cache import KVCache
from entmtp.target.masks import causal_among
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainCache
from entmtp.target.runtimes.artefact import Graphs, stored_graphs
from entmtp.target.runtimes.block_cache import BlockCache
from entmtp.target.runtimes.blocks import BLOCK_SIZE, SUM_WIDTH
from entmtp.target.runtimes.lanes import MAX_PINNED, Lanes
from entmtp.target.runtimes.one_thread import torch_on_one_thread

_EXACT_LENGTH = 32_768
"""Nothing is known that ends behind it, but tests go no further."""
_MIN_ROWS = 2
"""One row alone goes through other kernels than two."""
_FIRST_PAST = 5
"""Inputs in front of the past keys: ids, positions, mask, unfinished blocks, rows inside."""
_GROUP_SIZE = 64
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
    exact_length = _EXACT_LENGTH
    rows_at_once = 16

    def __init__(self, target: TargetModel, number_format: str, progress: Progress) -> None:
        """Export (once) and compile `target`.

        Raises:
            FetchError: the graph cannot be put into the cache.
        """
        super().__init__(target.unmodified)
        self._number_format = number_format
        self._format = FORMATS[number_format]
        self.has_float32_twin = not self._format.is_int8
        graphs = stored_graphs(target, number_format, progress)
        # The graphs are files that were made of these weights, and the rest is in the name.
        self.check_mark = graphs.folder / f"checked-{_machine()}"
        progress(f"compiling {target.name} for {number_format}")
        self._past_layout = [
            shape._replace(value_dim=shape.value_dim + SUM_WIDTH) for shape in self.layout
        ]
        body, settings = self._read_body(graphs), cpu_settings(number_format)
        # Where numbers are rounded to 16 bits depends on what is known of sizes.
        shapes = None if self._format.hint == "bf16" else self._body_shapes
        self._body = Lanes(body, settings, graphs.folder, shapes)
        # Logits are never rounded to 16 bits (DESIGN D3a).
        settings["INFERENCE_PRECISION_HINT"] = "f32"
        self._output = Lanes(graphs.output, settings, graphs.folder)

    @property
    def number_format(self) -> str:
        return self._number_format

    def new_cache(self, batch_size: int, capacity: int) -> BlockCache:
        del capacity  # it grows with what is committed
        return BlockCache.allocate(
            self._past_layout, batch_size, 0, dtype=self._format.cache, device=self.device
        )

    def forward(
        self,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        assert isinstance(cache, BlockCache), "a cache of new_cache"
        batch, wanted = ids.shape
        rows = self._bucket(batch, wanted)
        if rows > wanted:
            ids, positions = _widened(ids, rows), _widened(positions, rows)
        inputs = (ids, positions, *cache.visibility(among, positions))
        lane, new = self._body.lane(batch, rows), cache.room_for(rows)
        states = lane.own_output(0, (batch, rows, self.hidden_size))
        lane.run(inputs, (states, *(part for pair in new for part in pair)), cache.memory())
        cache.offer(new)
        hidden = torch.empty(batch, wanted, self.hidden_size)
        return hidden.copy_(states[:, :wanted])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        *front, size = hidden.shape
        wanted = math.prod(front)
        rows = hidden.reshape(wanted, size)
        if wanted == 1:
            rows = rows.expand(_MIN_ROWS, -1)
        logits = torch.empty(rows.shape[0], self.vocab_size)
        self._output.lane(*rows.shape).run((rows,), (logits,))
        return self._output_layer.finish(logits[:wanted].view(*front, -1))

    def at_work(self) -> AbstractContextManager[None]:
        return torch_on_one_thread()

    def warm_up(self, num_rows: Collection[int]) -> None:
        cache = self.new_cache(1, 0)
        for rows in _spread({max(_MIN_ROWS, rows) for rows in num_rows}, MAX_PINNED):
            self._body.pin(1, rows)
            zeros = torch.zeros(1, rows, dtype=torch.long)
            among = causal_among(1, rows, self.device)
            self.logits(self.forward(zeros, zeros, among, cache))

    @property
    def max_pinned_rows(self) -> int:
        limit: int = self._body.max_pinned
        return limit

    def make_room(self, num_sizes: int = 0) -> None:
        self._body.release()
        self._body.max_pinned = max(MAX_PINNED, num_sizes)

    def _bucket(self, batch: int, rows: int) -> int:
        """Rows to compute where `rows` are wanted: those of the next lane, if one is near."""
        pinned = [size for _, size in self._body.pinned] if batch == 1 else []
        place = bisect_left(pinned, rows)
        is_near = place < len(pinned) and pinned[place] <= 2 * rows
        return pinned[place] if is_near else max(_MIN_ROWS, rows)

    def _body_shapes(self, sizes: Sequence[int]) -> list[list[int]]:
        batch, rows = sizes
        front = [[batch, shape.num_kv_heads] for shape in self._past_layout]
        size = [[shape.key_dim, shape.value_dim] for shape in self._past_layout]
        past = [
            [*one, *memory, dims[part]]
            for memory in ([-1, BLOCK_SIZE], [BLOCK_SIZE])
            for part in (0, 1)
            for one, dims in zip(front, size, strict=True)
        ]
        visibility = [
            [batch, 1, rows, BLOCK_SIZE + rows],
            [batch, 1, -1, 1, 1],
            [batch, 1, rows, 1],
        ]
        return [[batch, rows], [batch, rows], *visibility, *past]

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


def cpu_settings(number_format: str) -> dict[str, object]:
    """What OpenVINO is to be told for a number format."""
    numbers = FORMATS[number_format]
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": numbers.hint,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _GROUP_SIZE if numbers.is_int8 else 0,
    }


def _machine() -> str:
    """A name for the processor, whose kernels may differ from another's."""
    import openvino as ov

    name = str(ov.Core().get_property("CPU", "FULL_DEVICE_NAME"))
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def _widened(numbers: torch.Tensor, rows: int) -> torch.Tensor:
    """`[B, T]` as `[B, rows]`: what nobody looks at is some number that is right elsewhere."""
    if numbers.shape[1] == 1:
        return numbers.expand(-1, rows)
    return pad(numbers, (0, rows - numbers.shape[1]))


def _spread(sizes: Collection[int], limit: int) -> list[int]:
    """At most `limit` of some sizes, the largest among them, evenly over their order."""
    ordered = sorted(sizes)
    if len(ordered) <= limit:
        return ordered
    step = len(ordered) / limit
    return [ordered[int((place + 1) * step) - 1] for place in range(limit)]
