"""A model that cannot verify trees, decoded as `transformers` does it: plainly, one sequence.

Knows: the model's own cache, masks and attention. Does not know: trees, batches.

Dimension key: B batch, always 1 · T rows · H hidden size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from entmtp.data.tokenizer import Tokenizer
from entmtp.target.architecture import FULL, Architecture
from entmtp.target.cache import KVCache, Slots
from entmtp.target.model import TargetModel
from entmtp.target.unmodified import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class PlainCache:
    """The verbs of `KVCache` for one sequence, over whatever state the model itself keeps."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._config = model.config.get_text_config()
        self.device = model.device
        self.batch_size = 1
        self.truncate(0, 0)

    @property
    def lengths(self) -> list[int]:
        return [self.length]

    @property
    def num_bytes(self) -> int:
        """Of what the layers hold now; it grows with the text."""
        held = (value for layer in self.state.layers for value in vars(layer).values())
        return sum(t.numel() * t.element_size() for t in held if isinstance(t, torch.Tensor))

    def view(self, start: int, stop: int) -> PlainCache:
        assert (start, stop) == (0, 1), "there is one sequence"
        return self

    def reserve(self, capacity: int) -> None:
        """It grows by itself."""

    def add_row(self) -> None:
        raise AssertionError("there is one sequence")

    def copy_row(self, source: int, target: int) -> None:
        raise AssertionError("there is one sequence")

    def advance(self, counts: Sequence[int]) -> None:
        self.length += counts[0]

    def keep(self, slots: Slots, counts: Sequence[int]) -> None:
        assert counts[0] <= 1, "plain decoding drafts nothing"
        self.advance(counts)

    def truncate(self, row: int, length: int) -> None:
        assert length == 0, "a state cannot be rolled back, only begun anew"
        from transformers import DynamicCache

        self.length = 0
        self.state: Any = DynamicCache(config=self._config)


class PlainTarget(TargetModel):
    """A target whose `tree_refusal` says why only the plain policy works with it."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: Tokenizer | None,
        name: str,
        tree_refusal: str,
    ) -> None:
        model.eval()
        model.requires_grad_(False)
        config = model.config.get_text_config()
        # A recurrent model has no end.
        length = getattr(config, "max_position_embeddings", None) or sys.maxsize
        whole = Architecture(frozenset({FULL}), None, int(length))
        super().__init__(LoadedModel(model, tokenizer, name, (), whole, shipped_attention=None))
        self.tree_refusal = tree_refusal

    def new_cache(self, batch_size: int, capacity: int) -> KVCache | PlainCache:
        assert batch_size == 1, "there is one sequence"
        return PlainCache(self.transformers_model)

    def forward(
        self,
        ids: torch.Tensor,  # [1, T]
        positions: torch.Tensor,
        among: torch.Tensor,
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        """Hidden states `[1, T, H]`. Positions and mask are the model's own: plain text has one."""
        assert isinstance(cache, PlainCache), "a plain target has a cache of its own kind"
        output = self._body(input_ids=ids, cache=cache.state, use_cache=True)
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def prefill(self, ids: torch.Tensor, cache: KVCache | PlainCache) -> Iterator[torch.Tensor]:
        """The whole prompt at once: some states cannot be fed in chunks."""
        yield self.forward(ids, ids, ids, cache)
        cache.advance([ids.shape[1]])
