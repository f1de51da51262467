"""The target in compiled PyTorch: one layer compiled by Inductor, run with the weights of each.

Knows: which layers there are, in which form their weights are held, and what a step hands to
them. Does not know: how layers are found or compiled, trees, sampling.

In every format each row of a product is computed alone (`linears`), and sums over keys run in the
keys' order (`flow`), up to 384 keys; with more, the product adds in blocks whose
borders shift, and rows differ by rounding in float32.

Dimension key: B batch · T rows · C past rows in memory · H hidden size · V vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import nn

from entmtp.data.cache import Progress
from entmtp.target.cache import KVCache
from entmtp.target.linears import Int8Linear, PackedLinear, can_pack, packed, twin
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainCache
from entmtp.target.runtimes.export import shape_groups
from entmtp.target.runtimes.flow import Flow
from entmtp.target.runtimes.late_cache import BLOCK, LateCache
from entmtp.target.runtimes.packages import (
    Place,
    Source,
    place_of,
    stored_packages,
)
from entmtp.target.runtimes.regions import (
    AUTO,
    Region,
    RegionFunction,
    Run,
    layers_of,
    regions_of,
    stand_in,
    with_chain_attention,
)

_EXACT_KEYS = 384
"""Up to so many, new ones and unused memory included, a row does not depend on its company."""
_MIN_ROWS = 2
"""One row alone goes through other kernels than two."""


class _Format(NamedTuple):
    """The type of what flows between layers, and whether weights are int8."""

    dtype: torch.dtype
    is_int8: bool


FORMATS = {
    "float32": _Format(torch.float32, False),
    "bfloat16": _Format(torch.bfloat16, False),
    "int8": _Format(torch.float32, True),
}


class CompiledTarget(TargetModel):
    """A `TargetModel` whose layers are machine code; what is between them runs in Python."""

    runtime = "compiled"
    exact_length = _EXACT_KEYS - BLOCK

    def __init__(self, target: TargetModel, number_format: str, progress: Progress) -> None:
        """Compile (once for such layers on such a machine) and pack the weights of `target`.

        Raises:
            BadInput: there is something to compile, and no compiler.
            FetchError: what was compiled cannot be put into the cache.
            ModelRefused: the layers cannot be taken out of this model.
        """
        super().__init__(target.unmodified)
        self._number_format = number_format
        self._format = FORMATS[number_format]
        self.has_float32_twin = not self._format.is_int8
        self._groups = shape_groups(self.layout)
        plan = make_plan(target, number_format)
        runs = stored_packages(plan.place, plan.sources(), target.name, progress)
        progress(f"packing the weights of {target.name} for {number_format}")
        self._skeleton = plan.skeleton(runs)
        self._int8_output = (
            Int8Linear(self.output_weight, self.output_bias) if self._format.is_int8 else None
        )

    @property
    def number_format(self) -> str:
        return self._number_format

    def new_cache(self, batch_size: int, capacity: int) -> LateCache:
        del capacity  # it grows with what is committed
        return LateCache.allocate(
            self.layout, batch_size, BLOCK, dtype=self._format.dtype, device=self.device
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
        flow = Flow([cache.layer(index) for index in range(self.num_layers)])
        output = self._skeleton(
            input_ids=ids,
            position_ids=positions,
            attention_mask=cache.mask(among),
            cache=flow,
            use_cache=True,
        )
        cache.offer([flow.stacked(layers) for layers in self._groups])
        hidden: torch.Tensor = output.last_hidden_state
        return hidden[:, :rows]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._int8_output is None:
            return super().logits(hidden)
        return self._output_layer.finish(self._int8_output(hidden))


class Plan(NamedTuple):
    """What will be compiled for a model, and where it goes."""

    body: Any
    regions: list[Region]
    number_format: str
    place: Place

    def sources(self) -> list[Source]:
        """What is traced: one layer of each kind."""
        return [self.source_of(region) for region in self.regions]

    def skeleton(self, runs: list[Run]) -> Any:
        """The body, in which every layer is computed by what was compiled for its kind."""
        layers = layers_of(self.body, sum(len(region.places) for region in self.regions))
        others: dict[int, nn.Module] = {}
        for region, run in zip(self.regions, runs, strict=True):
            for place in region.places:
                weights = packed(self._prepared(layers[place]))
                others[id(layers[place])] = stand_in(
                    layers[place], place, region.call, run, list(weights.values())
                )
        return twin(self.body, lambda part: others.get(id(part)))

    def source_of(self, region: Region) -> Source:
        layer = self._prepared(region.layer)
        tensors = {**dict(layer.named_parameters()), **dict(layer.named_buffers())}
        past = region.past()
        return Source(
            RegionFunction(layer, region.call, list(tensors)),
            [*region.call.tensors(), *past, *tensors.values()],
            [*region.free, *({0: AUTO, 2: AUTO} for _ in past), *({} for _ in tensors)],
        )

    def _prepared(self, layer: nn.Module) -> nn.Module:
        """The layer with its products in the form of the format. Floats are shared."""
        dtype, is_int8 = FORMATS[self.number_format]

        def swap(part: nn.Module) -> nn.Module | None:
            if type(part) is not nn.Linear:
                return None
            if is_int8:
                return Int8Linear(part.weight, part.bias)
            return PackedLinear(part) if can_pack(dtype) else None

        return twin(layer, swap)


@torch.inference_mode(False)
@torch.no_grad()
def make_plan(target: TargetModel, number_format: str) -> Plan:
    """
    Raises:
        ModelRefused: the layers cannot be taken out of this model.
    """
    dtype, _ = FORMATS[number_format]
    body = target.transformers_model.base_model
    if target.dtype != dtype:  # compiled code does not ask for the type of what it is given
        body = copy.deepcopy(body).to(dtype)
    body = with_chain_attention(body)
    regions = regions_of(body, target.layout)
    config = target.config.to_json_string()
    description = "\n".join([config, str(can_pack(dtype)), *(each.kind for each in regions)])
    return Plan(body, regions, number_format, place_of(description, number_format))
