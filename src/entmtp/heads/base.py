"""What every kind of draft heads has in common: sizes, output rows, the way of asking for a draft.

Knows: the target's hidden states, its embedding and output rows, and the geometry of a tree.
Does not know: which draft is accepted, sampling, sequences, training.

The hidden state h_t (after the target was fed token x_t) fixes the root x_{t+1}; head k
(0-based) proposes x_{t+k+2}, the nodes at depth k + 1.

Dimension key: B batch · T tree slots · A newly committed tokens · K draft heads · H hidden size ·
V vocabulary · W draft vocabulary · N any number of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import nn
from torch.nn.functional import linear

from entmtp.errors import TreeError
from entmtp.target.linears import can_pack, pack_weight, packed_linear

if TYPE_CHECKING:
    from entmtp.heads.level import Children
    from entmtp.target import TargetModel
    from entmtp.target.cache import KVCache
    from entmtp.trees import Tree, TreeBuffers


class Draft(NamedTuple):
    """A proposed tree of tokens, filled level by level."""

    wide_ids: torch.Tensor
    """`[B, T + 1]`: behind the slots is one that takes a level's padding."""
    wide_log_probs: torch.Tensor
    """`[B, T + 1]`, likewise."""

    @classmethod
    def empty(cls, root_ids: torch.Tensor, buffers: TreeBuffers) -> Draft:
        """A tree that holds its root; padding slots keep the root's id, which is always valid."""
        shape = (root_ids.shape[0], buffers.num_slots + 1)
        ids = root_ids.view(-1, 1).expand(shape).contiguous()
        return cls(ids, torch.zeros(shape, dtype=torch.float32, device=ids.device))

    @property
    def ids(self) -> torch.Tensor:
        """`[B, T]` target ids; the root at slot 0."""
        return self.wide_ids[:, :-1]

    @property
    def log_probs(self) -> torch.Tensor:
        """`[B, T]` float32, of each node given its parent; the root's is 0."""
        return self.wide_log_probs[:, :-1]


@dataclass(frozen=True)
class PrefixShape:
    """Sizes of the decoder layer that Hydra++ runs over the target's hidden states."""

    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope_theta: float
    max_length: int


@dataclass(frozen=True)
class HeadsConfig:
    """Everything that fixes the shape of a set of heads."""

    kind: str
    hidden_size: int
    vocab_size: int
    num_draft_heads: int
    num_layers: int
    """Residual blocks of each head, the first included."""
    draft_vocab_size: int
    """Rows of the output layer; fewer than `vocab_size` where there is an id map."""
    output: str
    """`own`: one trained output layer for each head. `target`: the target's rows, shared.
    `projected` (Medusa): the target's rows behind a trained square matrix of each head, that is,
    an own output layer in factored form, small enough to ship."""
    prefix: PrefixShape | None = None


class HeadKernels(ABC):
    """Another way to compute what heads compute, equal to it but for rounding."""

    def fill(
        self,
        draft: Draft,
        context: torch.Tensor,  # [B, H]
        buffers: TreeBuffers,
        heads: range,
    ) -> bool:
        """Fill the levels of some neighbouring heads in one call, in place.

        Returns whether that was done; else the heads are asked for `children`.
        """
        del draft, context, buffers, heads
        return False

    def children(
        self,
        head: int,
        context: torch.Tensor,  # [B, P, H]
        path: torch.Tensor,  # [B, P, (head + 1)·H]
        num_ranks: int,
    ) -> Children:
        """The best children of each path by one head that needs it."""
        raise NotImplementedError

    def children_of_all(self, context: torch.Tensor, num_ranks: Sequence[int]) -> list[Children]:
        """Those of the first heads, `[B, 1, R]` each, where contexts `[B, H]` are all they need."""
        raise NotImplementedError

    @abstractmethod
    def new_cache(self, batch_size: int) -> KVCache | None:
        """A cache for `extend`, where there is a prefix layer."""

    @abstractmethod
    def extend(self, hidden: torch.Tensor, cache: KVCache, counts: Sequence[int]) -> torch.Tensor:
        """As `PrefixLayer.extend`."""


class DraftHeads(nn.Module, ABC):
    """Draft heads of one target. `bind` them to it before use."""

    has_output_bias: ClassVar[bool] = False
    """Whether an output layer of its own has a bias in this kind's published form."""
    needs_path: ClassVar[bool] = False
    """Whether a head sees the tokens between the root and the node it proposes."""

    kernels: HeadKernels | None = None
    """What drafts in the place of this module's own products"""
    packed_rows: torch.Tensor | None = None
    """Output rows that all heads share, in the order that a CPU's kernel reads"""
    draft_ids: torch.Tensor | None
    output_rows: torch.Tensor | None
    output_row_bias: torch.Tensor | None
    embedding: torch.Tensor | None

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        self.kind = config.kind
        self.num_draft_heads = config.num_draft_heads
        self.hidden_size = config.hidden_size
        self.vocab_size = config.vocab_size
        self.dropout = nn.Dropout(0.0)
        is_reduced = config.draft_vocab_size < config.vocab_size
        ids = torch.zeros(config.draft_vocab_size, dtype=torch.long) if is_reduced else None
        self.register_buffer("draft_ids", ids)
        for name in ("output_rows", "output_row_bias", "embedding"):
            self.register_buffer(name, None, persistent=False)
        if config.output == "own":
            shape = (config.num_draft_heads, config.draft_vocab_size)
            self.output_weight = nn.Parameter(torch.zeros(*shape, config.hidden_size))
            if self.has_output_bias:
                self.output_bias = nn.Parameter(torch.zeros(shape))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def bind(self, target: TargetModel) -> None:
        """Take from the target what is not stored in the heads' own file."""
        if self.needs_path:
            self.embedding = target.embedding_weight.detach()
        if self.config.output != "own":
            ids = slice(None) if self.draft_ids is None else self.draft_ids
            rows = target.output_weight.detach()[ids]
            # Less their mean: every logit of a position moves by the same, which no probability
            # and no rank sees, and smaller logits are rounded less in 16 bits.
            self.output_rows = (rows.float() - rows.float().mean(0)).to(rows.dtype)
            bias = target.output_bias
            self.output_row_bias = None if bias is None else bias.detach()[ids]

    def output(self, head: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Weight `[W, H]` and bias `[W]` of one head's output layer."""
        if self.config.output != "own":
            assert self.output_rows is not None, "bind the heads to their target first"
            return self.output_rows, self.output_row_bias
        return self.output_weight[head], self.output_bias[head] if self.has_output_bias else None

    def pack(self) -> None:
        """Lay shared output rows out for inference on a CPU: they are the largest product of a
        draft, and a few rows do not repay laying them out each time.

        To be called on bound heads whose device and dtype are final.
        """
        if self.output_rows is not None and self.device.type == "cpu" and can_pack(self.dtype):
            self.packed_rows = pack_weight(self.output_rows)

    def logits(self, head: int, features: torch.Tensor) -> torch.Tensor:
        """Logits over the draft vocabulary: features `[..., H]` to `[..., W]`."""
        weight, bias = self.output(head)
        if self.packed_rows is not None:
            return packed_linear(features, self.packed_rows, bias)
        return linear(features, weight, bias)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """The target's input embedding of target ids `[...]`: `[..., H]`."""
        assert self.embedding is not None, "bind the heads to their target first"
        return self.embedding.index_select(0, ids.flatten()).view(*ids.shape, -1)

    def to_target_ids(self, draft_rows: torch.Tensor) -> torch.Tensor:
        """Row numbers of the output layer to the target's ids."""
        return draft_rows if self.draft_ids is None else self.draft_ids[draft_rows]

    def new_cache(self, batch_size: int, capacity: int) -> KVCache | None:
        """A cache for `observe`, where the kind keeps one."""
        del batch_size, capacity
        return None

    def observe(
        self,
        hidden: torch.Tensor,  # [B, A, H]
        cache: KVCache | None,
        counts: Sequence[int],
    ) -> torch.Tensor:
        """Take in the hidden states of newly committed tokens; the context `[B, H]` of the last.

        Row b holds `counts[b]` real states, then padding.
        """
        del cache
        return last_of_each(hidden, counts)

    def extend(
        self,
        hidden: torch.Tensor,  # [B, A, H]
        positions: torch.Tensor,  # [B, A]
        mask: torch.Tensor,  # [B, 1, A, S] bool
        cache: KVCache | None,
    ) -> torch.Tensor:
        """Contexts `[B, A, H]` of new tokens whose places in the cache are the caller's to say.

        `observe` without a look at any count: no length is moved.
        """
        del positions, mask, cache
        return hidden

    def context(self, hidden: torch.Tensor) -> torch.Tensor:
        """Contexts of all positions of whole rows at once: `[B, S, H]` to `[B, S, H]`."""
        return hidden

    @abstractmethod
    def features(
        self,
        head: int,
        context: torch.Tensor,  # [..., H]
        path: torch.Tensor | None,  # [..., (head + 1)·H] embeddings of root … parent
    ) -> torch.Tensor:
        """Input `[..., H]` of one head's output layer."""

    @abstractmethod
    def fill(
        self,
        draft: Draft,
        context: torch.Tensor,  # [B, H]
        buffers: TreeBuffers,
    ) -> Iterator[int]:
        """Fill a tree with tokens, in place; yields the depth behind each level.

        Whoever asks for no more leaves the deeper levels empty, and where the kind drafts level
        by level, they cost nothing.
        """

    def fill_whole(self, draft: Draft, context: torch.Tensor, buffers: TreeBuffers) -> None:
        """`fill` to the last level, where nobody looks in between."""
        kernels, heads = self.kernels, range(buffers.depth)
        if kernels is None or not kernels.fill(draft, context, buffers, heads):
            for _ in self.fill(draft, context, buffers):
                pass

    def draft(
        self,
        context: torch.Tensor,  # [B, H]
        root_ids: torch.Tensor,  # [B]
        buffers: TreeBuffers,
    ) -> Draft:
        """A whole tree of tokens, as deep as `buffers.depth` and no deeper."""
        draft = Draft.empty(root_ids, buffers)
        self.fill_whole(draft, context, buffers)
        return draft


def last_of_each(values: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
    """Of `[B, A, H]`, the entry `counts[b] - 1` of each row: `[B, H]`."""
    assert min(counts) > 0, "every row must hold a new token"
    if min(counts) == max(counts):
        return values[:, counts[0] - 1]
    places = torch.tensor(counts, device=values.device) - 1
    return values[torch.arange(len(counts), device=values.device), places]


def check_tree(heads: DraftHeads, tree: Tree) -> None:
    """Refuse a tree that these heads cannot fill.

    Raises:
        TreeError: the tree is deeper than there are heads, or asks for a rank that they lack.
    """
    if tree.depth > heads.num_draft_heads:
        raise TreeError(
            f"the tree is {tree.depth} deep but there are {heads.num_draft_heads} draft heads;"
            " use a shallower tree or heads trained with more"
        )
    top = tree.max_rank
    if top >= heads.config.draft_vocab_size:
        raise TreeError(
            f"the tree uses rank {top} but the heads' vocabulary has"
            f" {heads.config.draft_vocab_size} tokens; use a narrower tree"
        )
