"""Medusa heads: independent of one another, each a function of the context alone.

Knows: residual blocks of all heads as stacked weights, so that one product serves them all.
Does not know: what tokens lie between the root and the node it proposes.

Dimension key: B batch · T tree slots · K draft heads · L residual blocks · H hidden size ·
W draft vocabulary · N rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn.functional import linear, silu

from entmtp.heads.base import Draft, DraftHeads, HeadsConfig
from entmtp.heads.level import Children, choose, fill_level
from entmtp.trees import TreeBuffers


class MedusaHeads(DraftHeads):
    """`x + SiLU(linear(x))`, L times, then an output layer; zero weights make it the identity."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__(config)
        heads, layers, hidden = config.num_draft_heads, config.num_layers, config.hidden_size
        self.block_weight = nn.Parameter(torch.zeros(heads, layers, hidden, hidden))
        self.block_bias = nn.Parameter(torch.zeros(heads, layers, hidden))
        # SiLU only adds: blocks alone cannot turn a state away from the token it stands for.
        is_projected = config.output == "projected"
        self.projection = None
        if is_projected:
            identities = torch.zeros(heads, hidden, hidden)
            identities.diagonal(dim1=1, dim2=2).fill_(1)
            self.projection = nn.Parameter(identities)

    def features(self, head: int, context: torch.Tensor, path: torch.Tensor | None) -> torch.Tensor:
        del path
        state = context
        for weight, bias in zip(self.block_weight[head], self.block_bias[head], strict=True):
            state = state + silu(linear(self.dropout(state), weight, bias))
        dropped: torch.Tensor = self.dropout(state)
        return dropped if self.projection is None else linear(dropped, self.projection[head])

    def all_features(self, context: torch.Tensor, num_draft_heads: int) -> torch.Tensor:
        """The first heads at once: context `[B, H]` to `[K, B, H]`."""
        state = context.expand(num_draft_heads, *context.shape)
        for layer in range(self.config.num_layers):
            weight = self.block_weight[:num_draft_heads, layer]
            bias = self.block_bias[:num_draft_heads, layer, None]
            state = state + silu(torch.baddbmm(bias, state, weight.mT))
        if self.projection is not None:
            state = torch.bmm(state, self.projection[:num_draft_heads].mT)
        return state

    def all_logits(self, features: torch.Tensor) -> torch.Tensor:
        """`[K, B, H]` to `[K, B, W]` in one product."""
        if self.config.output != "own":
            return self.logits(0, features)
        return torch.bmm(features, self.output_weight[: features.shape[0]].mT)

    def fill(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> Iterator[int]:
        if not buffers.levels:
            return
        kernels, heads = self.kernels, range(buffers.depth)
        if kernels is not None and kernels.fill(draft, context, buffers, heads):
            yield from range(1, buffers.depth + 1)
            return
        for depth, (level, children) in enumerate(
            zip(buffers.levels, self._children(context, buffers), strict=True), start=1
        ):
            # One row of children serves every parent of the level: they do not see the parent.
            fill_level(draft, level, children, shared_row=True)
            yield depth

    def _children(self, context: torch.Tensor, buffers: TreeBuffers) -> list[Children]:
        num_ranks = [level.num_ranks for level in buffers.levels]
        if self.kernels is not None:
            return self.kernels.children_of_all(context, num_ranks)
        logits = self.all_logits(self.all_features(context, buffers.depth))
        pairs = zip(logits, num_ranks, strict=True)
        return [choose(rows[:, None], count, self.draft_ids) for rows, count in pairs]
