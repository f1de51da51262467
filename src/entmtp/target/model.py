"""The target model behind a small protocol: ids, positions, mask and cache in, hidden states out.

Knows: an unmodified `transformers` causal language model and what may be read off it.
Does not know: heads, trees, sampling, text.

Dimension key: B batch · T rows · H hidden size · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from entmtp.data.tokenizer import Tokenizer
from entmtp.errors import ModelRefused
from entmtp.target.architecture import FULL, SLIDING, read_architecture
from entmtp.target.attention import ATTENTION_NAME, register_attention
from entmtp.target.cache import KVCache, LayerShape
from entmtp.target.layout import probe_layout, shipped_attention, takes_our_attention
from entmtp.target.masks import additive, causal_among, sliding_mask, step_mask
from entmtp.target.readiness import Readiness
from entmtp.target.root_signals import root_signals
from entmtp.target.unmodified import LoadedModel, Unmodified, demand_rows

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from entmtp.target.plain import PlainCache

Masks = torch.Tensor | None | dict[str, torch.Tensor | None]
"""Numbers to add to scores, `[B, 1, T, S]`; by kind of layer where a model has several."""

CHEAP_ROWS = 32
"""Two rows of logits in turn take a CPU as long as this many at once."""
PREFILL_CHUNK = 256
"""Prompt tokens of one forward: the mask of a chunk is `[256, S]`, however long the prompt is."""


class TargetModel(Readiness):
    """A model whose output must be kept, ready for tree decoding. This one runs in PyTorch."""

    runtime = "eager"

    tree_refusal: str = ""
    """Why it cannot verify trees; empty for one that can (see `target.plain`)"""

    has_float32_twin: bool = True
    """Whether a difference may be rounding, which the model in float32 tells of; false where the
    format makes other numbers of the weights, or rows have the same bits in any company"""

    exact_length: int = 0
    """Tokens up to which rows of a tree have the bits of plain decoding; 0: that is not said"""

    check_mark: Path | None = None
    """A file that stands for a self-check which this very target has passed on this machine"""

    def __init__(self, unmodified: Unmodified) -> None:
        self.unmodified = unmodified
        """What the same model on another runtime is made of, too"""
        self._output_layer = unmodified.output_layer
        self.architecture = unmodified.architecture
        self.tokenizer = unmodified.tokenizer
        self.name = unmodified.name
        self.hidden_size: int = self.output_weight.shape[1]
        self.vocab_size: int = self.output_weight.shape[0]
        self.num_layers = len(unmodified.layout)
        self.max_length = unmodified.architecture.max_length
        self.eos_ids = unmodified.eos_ids

    @classmethod
    def from_transformers(
        cls,
        model: PreTrainedModel,
        tokenizer: Tokenizer | None = None,
        name: str = "model",
    ) -> TargetModel:
        """Wrap a loaded model. It is put into evaluation mode and given our attention function.

        Raises:
            ModelRefused: the model keeps a state that a tree cannot be verified with.
        """
        demand_rows(model)
        model.eval()
        model.requires_grad_(False)
        architecture = read_architecture(model.config.get_text_config())
        shipped = None
        if takes_our_attention(model):
            shipped = shipped_attention(model)
            register_attention()
            model.set_attn_implementation(ATTENTION_NAME)
        layout = probe_layout(model)
        return cls(LoadedModel(model, tokenizer, name, layout, architecture, shipped))

    def with_window(self, window: int) -> TargetModel:
        """The same model with another sliding window in our masks; its own are as they were."""
        return TargetModel(self.unmodified.with_window(window))

    @contextmanager
    def own_attention(self) -> Iterator[PreTrainedModel]:
        """The `transformers` model with the attention that it came with, inside the block."""
        if self.shipped_attention is None:
            yield self.transformers_model
            return
        self.transformers_model.set_attn_implementation(self.shipped_attention)
        try:
            yield self.transformers_model
        finally:
            self.transformers_model.set_attn_implementation(ATTENTION_NAME)

    def demand_trees(self, policy: str) -> None:
        """Refuse a policy that drafts where trees cannot be verified.

        Raises:
            ModelRefused: this target was let in for plain decoding only.
        """
        if self.tree_refusal:
            raise ModelRefused(
                f"policy {policy} drafts, and this model was let in for plain decoding only:"
                f" {self.tree_refusal}"
            )

    @property
    def device(self) -> torch.device:
        return self.unmodified.device

    @property
    def dtype(self) -> torch.dtype:
        return self.unmodified.dtype

    @property
    def layout(self) -> tuple[LayerShape, ...]:
        return self.unmodified.layout

    @property
    def shipped_attention(self) -> str | None:
        """The name of what our attention stands in for; None where the model keeps its own."""
        return self.unmodified.shipped_attention

    @property
    def config(self) -> PreTrainedConfig:
        """The text configuration."""
        return self.unmodified.config

    @property
    def number_format(self) -> str:
        """What the output is a matter of: the weights' format, by the name that `--dtype` has."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def transformers_model(self) -> PreTrainedModel:
        """The unmodified model, which is read now where nothing has asked for it yet."""
        return self.unmodified.model

    @cached_property
    def _body(self) -> Any:
        return self.transformers_model.base_model

    @property
    def embedding_weight(self) -> torch.Tensor:  # [V, H]
        return self.unmodified.embedding_weight

    @property
    def output_weight(self) -> torch.Tensor:  # [V, H]
        return self._output_layer.weight

    @property
    def output_bias(self) -> torch.Tensor | None:  # [V]
        return self._output_layer.bias

    def new_cache(self, batch_size: int, capacity: int) -> KVCache | PlainCache:
        """An empty cache for `batch_size` sequences of `capacity` tokens, drafts included."""
        # Imported here, because it costs seconds that no other runtime needs.
        from entmtp.target.model_cache import ModelCache

        return ModelCache.allocate(
            self.layout, batch_size, capacity, dtype=self.dtype, device=self.device
        )

    def at_work(self) -> AbstractContextManager[None]:
        """What a step or a prefill runs in."""
        return nullcontext()

    def forward(
        self,
        ids: torch.Tensor,  # [B, T]
        positions: torch.Tensor,  # [B, T]
        among: torch.Tensor,  # [B, T, T] bool: which of the new rows see which
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        """Hidden states `[B, T, H]` after the final norm; writes T cache rows, moves no length."""
        cache.reserve(max(cache.lengths) + ids.shape[1])
        output = self._body(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._masks(cache.lengths, positions, among),
            cache=cache,
            use_cache=True,
        )
        hidden: torch.Tensor = output.last_hidden_state
        return hidden

    def forward_prompt(
        self,
        ids: torch.Tensor,  # [1, T]
        positions: torch.Tensor,  # [1, T]
        among: torch.Tensor,  # [1, T, T] bool
        cache: KVCache | PlainCache,
    ) -> torch.Tensor:
        """As `forward`, for a chunk of prompt, where a runtime makes a difference."""
        return self.forward(ids, positions, among, cache)

    def _masks(self, lengths: Sequence[int], positions: torch.Tensor, among: torch.Tensor) -> Masks:
        """The one mask that every layer takes, or one for each kind of layer."""
        full = step_mask(lengths, among)
        if full is None and self.shipped_attention is None:
            full = torch.ones(*among.shape[:2], max(lengths) + 1, dtype=torch.bool)[:, None]
            full = full.to(self.device)
        window = self.architecture.window
        if window is None:
            return additive(full, self.dtype)
        sliding = sliding_mask(full, lengths, positions, window)
        if FULL not in self.architecture.kinds:
            return additive(sliding, self.dtype)
        numbers = additive(full, self.dtype)
        cut = numbers if sliding is full else additive(sliding, self.dtype)
        return {FULL: numbers, SLIDING: cut}

    @property
    def rows_at_once(self) -> int:
        """Up to so many rows of logits cost little more than one, and have the same bits."""
        return CHEAP_ROWS if self._output_layer.is_packed else 0

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[..., V]` of hidden states `[..., H]`."""
        return self._output_layer.logits(hidden)

    @property
    def largest_logits(self) -> Callable[[torch.Tensor], Sequence[int]] | None:
        """Of hidden states `[..., H]` the ids of their largest logits, one after the other; of
        equal ones the lowest.

        None where a runtime has nothing faster than to look for them in `logits`.
        """
        return None

    def root_signals(self, logits: torch.Tensor) -> torch.Tensor:
        """Top-1 probability and entropy in nats, `[B, 2]` float32, of logits `[B, V]`."""
        return root_signals(logits)

    @property
    def gumbel_noise(self) -> Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor] | None:
        """`(seeds [B], positions [B], V) -> [B, V]`: the draw's keyed noise, up to rounding.

        None where a runtime has nothing faster than the definition (`decode/noise.py`).
        """
        return None

    def prefill(self, ids: torch.Tensor, cache: KVCache | PlainCache) -> Iterator[torch.Tensor]:
        """Commit prompt ids `[1, P]` of the only sequence of `cache`; yields hidden `[1, A, H]`.

        In chunks, so that a long prompt needs no `[P, P]` mask.
        """
        for chunk in ids.split(PREFILL_CHUNK, dim=1):
            rows = chunk.shape[1]
            positions = cache.length + torch.arange(rows, device=ids.device)[None]
            among = causal_among(1, rows, ids.device)
            hidden = self.forward_prompt(chunk, positions, among, cache)
            cache.advance([rows])
            yield hidden

    @property
    def fingerprint(self) -> str:
        """Names these weights; see `sketch` for weights that are held in float16."""
        return self.unmodified.fingerprint

    @property
    def sketch(self) -> str:
        """Some of these weights' values, to be compared with a tolerance (`is_alike`)."""
        return self.unmodified.sketch
