"""Attention whose sums over keys are grouped by the keys' positions, whatever else is in memory.

Knows: `transformers`' protocols of a cache and of an attention function. Does not know: caches,
graphs, who is accepted.

A product of matrices on OpenVINO adds up to 512 terms one after the other, and cuts a longer sum
there, wherever in the text that is. So keys are grouped in *blocks* of positions: within a block
one product adds in the positions' order, and blocks are added one after the other. A row sees

* finished blocks, as they lie in memory;
* the *tail*, which is the unfinished block, and behind it those new rows that belong to it;
* new rows behind the border of that block, in a sum of their own.

A masked key adds exactly 0. So a tree's row has the bits of plain decoding's row, which meets the
same keys in the same blocks, whether they are finished by then or not (DESIGN D3a). The weights
are added up in the same products: values carry columns of ones.

That holds for trees of up to 384 rows that are no deeper than a block, in any text. Longer chunks
of a prompt reach behind two borders; they are the same whatever follows.

Dimension key: B batch · T new rows · M finished blocks in memory · P positions of a block ·
N key/value heads · G queries of each · R = G·T · D head size · E = D and the columns of ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AttentionInterface

from entmtp.target.runtimes.chain import refuse_unknown
from entmtp.target.runtimes.flow import Flow

BLOCK_ATTENTION = "entmtp-blocks"
BLOCK_SIZE = 128
"""Positions of a block. With 256, steps on short texts took longer, and on long ones no less."""
SUM_WIDTH = 16
"""Columns of ones: one full vector register, or the product sums in another way."""


class Past(NamedTuple):
    """Committed keys and values of one layer."""

    keys: torch.Tensor  # [B, N, M, P, D]
    values: torch.Tensor  # [B, N, M, P, E]
    tail_keys: torch.Tensor  # [B, N, P, D]
    tail_values: torch.Tensor  # [B, N, P, E]


class BlockFlow(Flow):
    """The cache of one forward, and the attention to it: `attend` follows `update`."""

    def __init__(
        self,
        past: Sequence[Past],
        unfinished: torch.Tensor,  # [B, 1, M, 1, 1] additive
        inside: torch.Tensor,  # [B, 1, T, 1]: 1 for a new row of the tail's block, else 0
    ) -> None:
        super().__init__([(one.tail_keys, one.tail_values) for one in past])
        self._past = past
        self._unfinished = unfinished
        self._inside, self._behind = inside, 1 - inside
        self._latest = 0

    @contextmanager
    def attended(self) -> Iterator[None]:
        """Within the block, `BLOCK_ATTENTION` is attention to this."""
        AttentionInterface.register(BLOCK_ATTENTION, self.attend)
        try:
            yield
        finally:
            AttentionInterface.register(BLOCK_ATTENTION, BlockFlow.attend)

    def update(
        self,
        key_states: torch.Tensor,  # [B, N, T, D]
        value_states: torch.Tensor,
        layer_idx: int,
        *_: Any,
        **__: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._latest = layer_idx
        self.new[layer_idx] = key_states, value_states
        return key_states, value_states

    def attend(
        self,
        module: nn.Module,
        query: torch.Tensor,  # [B, N·G, T, D]
        key: torch.Tensor,  # [B, N, T, D]
        value: torch.Tensor,
        attention_mask: torch.Tensor,  # [B, 1, T, P + T] additive
        scaling: float | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """
        Raises:
            ModelRefused: the model passes an option that this function would have to drop.
        """
        refuse_unknown(options)
        past = self._past[self._latest]
        num_kv_heads, size = int(key.shape[1]), int(value.shape[3])
        groups = int(query.shape[1]) // num_kv_heads
        scale = int(query.shape[3]) ** -0.5 if scaling is None else scaling
        folded = (query * scale).unflatten(1, (num_kv_heads, groups)).flatten(2, 3)[:, :, None]
        far = torch.matmul(folded, past.keys.transpose(3, 4))
        keys = torch.cat([past.tail_keys, key], 2)[:, :, None]
        near = torch.matmul(folded, keys.transpose(3, 4)).unflatten(3, (groups, -1))
        near = (near + attention_mask[:, :, None, None]).flatten(3, 4)
        highest = (far.amax(4, keepdim=True) + self._unfinished).amax(2, keepdim=True)
        bottom = -torch.maximum(highest, near.amax(4, keepdim=True))
        # The mask of whole blocks joins what is small, not the scores of every key.
        far, near = torch.exp(far + (self._unfinished + bottom)), torch.exp(near + bottom)
        ones = torch.ones_like(value[..., :1]).expand(-1, -1, -1, SUM_WIDTH)
        value = torch.cat([value, ones], 3)
        values = torch.cat([past.tail_values, value * self._inside], 2)[:, :, None]
        total = torch.matmul(far, past.values).sum(2, keepdim=True) + torch.matmul(near, values)
        others = (value * self._behind)[:, :, None]
        total = total + torch.matmul(near[..., BLOCK_SIZE:], others)
        sums, weights = total.flatten(1, 2).split((size, SUM_WIDTH), 3)
        output = (sums / weights[..., :1]).unflatten(2, (groups, -1)).flatten(1, 2)
        return output.transpose(1, 2), None


AttentionInterface.register(BLOCK_ATTENTION, BlockFlow.attend)
