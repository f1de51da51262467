"""What every section works with: targets, heads, trees, prompts. No downloads."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from time import perf_counter
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from entmtp.data.prompts import packaged_prompts
from entmtp.engine import Engine
from entmtp.heads import (
    DraftHeads,
    HeadsConfig,
    build_heads,
    default_tree,
    load_heads,
    locate_heads,
    prefix_shape,
)
from entmtp.scheduler import Selection, StaticPolicy, TreePolicy
from entmtp.target import TargetModel
from entmtp.target.load import DTYPES, load_target
from entmtp.target.runtimes.capture import DirectRecorder
from entmtp.target.runtimes.graphs import GraphsTarget
from entmtp.trees import ROOT, Tree, chain, full, medusa_63

Prompt = Any
SHIPPED = ("medusa", "hydra")
"""Kinds of which the package has heads for the embedded model."""
TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 48}


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Setup:
    """One run's means."""

    model: str | None
    device: torch.device
    quick: bool

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def weights(self) -> str:
        return "random: timing and equality only" if self.model is None else self.model

    @lru_cache  # noqa: B019  # a run has one setup
    def target(self, dtype: str) -> TargetModel:
        """The model in PyTorch, each kernel launched by itself."""
        if self.model is not None:
            return load_target(self.model, dtype, str(self.device))
        return random_target(TINY, DTYPES[dtype], self.device)

    @lru_cache  # noqa: B019
    def graphs(self, dtype: str, attention: str = "sdpa") -> GraphsTarget:
        """The same by graphs; on a CPU by what stands in for them."""
        return graphs_of(self.target(dtype), attention)

    @lru_cache  # noqa: B019
    def heads(self, kind: str, dtype: str) -> DraftHeads:
        """Shipped ones where they fit the model, random ones else."""
        target = self.target(dtype)
        if self.model is not None and kind in SHIPPED:
            return load_heads(kind, target)
        return random_heads(target, kind)

    def trees(self, kind: str) -> dict[str, Tree]:
        """Static trees, plain decoding among them."""
        trees = {"plain": ROOT, "chain-4": chain(4), "default-16": full(2, 3)}
        if self.model is not None and kind in SHIPPED:
            trees["default-16"] = default_tree(locate_heads(kind))
        return trees if self.quick else {**trees, "medusa-63": medusa_63()}

    def prompts(self, count: int) -> list[Prompt]:
        """Conversations for a model with a tokenizer, ids for one without."""
        if self.target("float32").tokenizer is not None:
            return [prompt.content for prompt in packaged_prompts()[:count]]
        vocab_size = self.target("float32").vocab_size
        generator = torch.Generator().manual_seed(0)
        return [
            torch.randint(vocab_size, (5 + 3 * place,), generator=generator).tolist()
            for place in range(count)
        ]


def graphs_of(target: TargetModel, attention: str = "sdpa") -> GraphsTarget:
    recorder = None if target.device.type == "cuda" else DirectRecorder()
    return GraphsTarget(target, attention, recorder=recorder)


def random_target(sizes: dict[str, int], dtype: torch.dtype, device: torch.device) -> TargetModel:
    """A Llama of random weights, whose text means nothing."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    config = LlamaConfig(**{**heads, "max_position_embeddings": 8192, **ids, **sizes})
    torch.manual_seed(0)
    with torch.inference_mode(False), torch.device(device):
        model = LlamaForCausalLM._from_config(config, dtype=dtype)
    return TargetModel.from_transformers(model, name="random-llama")


def random_heads(target: TargetModel, kind: str, num_draft_heads: int = 4) -> DraftHeads:
    """Heads that guess: no step costs more or less, or is less right, for what they guess."""
    config = HeadsConfig(
        kind=kind,
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_draft_heads=num_draft_heads,
        num_layers=1,
        draft_vocab_size=target.vocab_size,
        output="target",
        prefix=prefix_shape(target) if kind == "hydra++" else None,
    )
    with torch.inference_mode(False), torch.device(target.device):
        heads = build_heads(config).to(target.dtype)
    heads.bind(target)
    return heads.eval().requires_grad_(False)


class Announced(TreePolicy):
    """The first of these trees; a request may bring a policy with any of them."""

    name = "announced"

    def __init__(self, trees: Iterable[Tree]) -> None:
        self.trees = tuple(trees)

    def begin(self, seed: int) -> Selection:
        return StaticPolicy(self.trees[0]).begin(seed)


def engine_with(
    target: TargetModel, heads: DraftHeads, trees: Iterable[Tree], size: int = 1
) -> Engine:
    """Warmed up for all of these trees."""
    return Engine(target, heads, Announced(trees), max_batch_size=size)


class Clock:
    """Seconds of what is done between two readings, device included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def lap(self) -> float:
        before, self._last = self._last, self._now()
        return self._last - before

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return perf_counter()
