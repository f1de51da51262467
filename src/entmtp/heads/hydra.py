"""Hydra heads: sequentially dependent, each sees the tokens between the root and its node.

Knows: MLP heads over the context and the path's embeddings; with a prefix layer, Hydra++.
Does not know: how the prefix layer keeps its cache (`prefix.py`).

Dimension key: B batch · T tree slots · P open nodes · A new tokens · H hidden size · N rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.functional import silu

from entmtp.heads.base import Draft, DraftHeads, HeadsConfig, last_of_each
from entmtp.heads.level import Children, choose, fill_level
from entmtp.heads.prefix import PrefixLayer
from entmtp.trees import Level, TreeBuffers

if TYPE_CHECKING:
    from entmtp.target.cache import KVCache


class FirstBlock(nn.Module):
    """`skip(x) + SiLU(gate(x))` from `(head + 2)·H` down to H, both linears in one product.

    Rows 0..H of the weight are the gate (zero at first), rows H..2H the skip (at first it hands
    the context through and ignores the path).
    """

    def __init__(self, in_size: int, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_size, 2 * hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        with torch.no_grad():
            self.linear.weight[hidden_size:, :hidden_size].diagonal().fill_(1)

    def scale_skip(self, factor: float) -> None:
        """Multiply the skip's weight, and with it the logits of heads that have just been made."""
        with torch.no_grad():
            self.linear.weight[self.linear.out_features // 2 :] *= factor

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        gate, skip = self.linear(state).chunk(2, dim=-1)
        added: torch.Tensor = skip + silu(gate)
        return added


class ResidualBlock(nn.Module):
    """`x + SiLU(linear(x))`, the identity at first."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        added: torch.Tensor = state + silu(self.linear(state))
        return added


class HydraHeads(DraftHeads):
    """Head k maps the context and the embeddings of x_{t+1} … x_{t+k+1} to x_{t+k+2}."""

    has_output_bias = True
    needs_path = True

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__(config)
        hidden = config.hidden_size
        heads = range(config.num_draft_heads)
        self.first = nn.ModuleList(FirstBlock((k + 2) * hidden, hidden) for k in heads)
        self.rest = nn.ModuleList(
            nn.ModuleList(ResidualBlock(hidden) for _ in range(config.num_layers - 1))
            for _ in heads
        )
        self.prefix = None if config.prefix is None else PrefixLayer(hidden, config.prefix)

    def new_cache(self, batch_size: int, capacity: int) -> KVCache | None:
        if self.kernels is not None:
            return self.kernels.new_cache(batch_size)
        return None if self.prefix is None else self.prefix.new_cache(batch_size, capacity)

    def observe(
        self, hidden: torch.Tensor, cache: KVCache | None, counts: Sequence[int]
    ) -> torch.Tensor:
        if self.prefix is not None:
            assert cache is not None, "Hydra++ needs the cache of new_cache"
            layer = self.prefix if self.kernels is None else self.kernels
            hidden = layer.extend(hidden, cache, counts)
        return last_of_each(hidden, counts)

    def extend(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor,
        cache: KVCache | None,
    ) -> torch.Tensor:
        return hidden if self.prefix is None else self.prefix.run(hidden, positions, mask, cache)

    def context(self, hidden: torch.Tensor) -> torch.Tensor:
        contexts: torch.Tensor = hidden if self.prefix is None else self.prefix(hidden)
        return contexts

    def features(self, head: int, context: torch.Tensor, path: torch.Tensor | None) -> torch.Tensor:
        assert path is not None, "a Hydra head needs the path's embeddings"
        state: torch.Tensor = self.first[head](torch.cat([context, path], dim=-1))
        blocks: Iterable[nn.Module] = self.rest[head]  # type: ignore[assignment]  # a ModuleList
        for block in blocks:
            state = block(self.dropout(state))
        state = self.dropout(state)
        return state

    def fill(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> Iterator[int]:
        for head, level in enumerate(buffers.levels):
            kernels = self.kernels
            this = range(head, head + 1)
            if kernels is None or not kernels.fill(draft, context, buffers, this):
                self._fill_level(head, draft, context, level)
            yield head + 1

    def _fill_level(self, head: int, draft: Draft, context: torch.Tensor, level: Level) -> None:
        path_ids = draft.wide_ids.gather(1, level.ways.flatten(1)).view_as(level.ways)
        path = self.embed(path_ids).flatten(2)
        states = context[:, None].expand(-1, path.shape[1], -1)
        fill_level(draft, level, self._children(head, states, path, level.num_ranks))

    def _children(
        self, head: int, context: torch.Tensor, path: torch.Tensor, num_ranks: int
    ) -> Children:
        if self.kernels is not None:
            return self.kernels.children(head, context, path, num_ranks)
        logits = self.logits(head, self.features(head, context, path))
        return choose(logits, num_ranks, self.draft_ids)
