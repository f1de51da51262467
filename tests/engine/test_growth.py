"""Prompts longer than one chunk, and answers longer than the memory made ready for them."""

from __future__ import annotations

import pytest
import torch

from draft_heads import KINDS, hidden_states, random_heads
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.target.model import PREFILL_CHUNK
from entmtp.trees import Tree, full
from fixtures import tiny
from reference import ids_of, run

TREE = Tree.from_paths([*full(8, 1).paths, (6, 2), (6, 5)])
LENGTHS = (PREFILL_CHUNK - 1, PREFILL_CHUNK, 2 * PREFILL_CHUNK + 9)


def target() -> TargetModel:
    return tiny(max_length=1024)


def prompt_of(length: int) -> list[int]:
    return torch.randint(8, (length,), generator=torch.Generator().manual_seed(length)).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_long_prompts(kind: str) -> None:
    requests = [(prompt_of(length), GenerationParams(20)) for length in LENGTHS]
    plain = ids_of(run(Engine(target(), max_batch_size=1), requests))
    engine = Engine(target(), random_heads(target(), kind), StaticPolicy(TREE))
    assert ids_of(run(engine, requests)) == plain


@pytest.mark.parametrize("kind", KINDS)
def test_heads_take_in_a_prompt_in_chunks(kind: str) -> None:
    heads, ids = random_heads(target(), kind), prompt_of(LENGTHS[-1])
    engine = Engine(target(), heads, StaticPolicy(TREE))
    engine.add(ids, GenerationParams(20))
    with torch.inference_mode():
        engine._loop.admit()
        whole = context_of(heads, ids)
    assert (engine._loop.batch._context[0] - whole).abs().max().item() < 1e-4


def context_of(heads: DraftHeads, ids: list[int]) -> torch.Tensor:
    return heads.context(hidden_states(target(), torch.tensor([ids])))[0, -1]


@pytest.mark.parametrize("kind", KINDS)
def test_memory_grows_under_running_sequences(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [(prompt_of(3 * i + 1), GenerationParams(30 + 20 * i)) for i in range(4)]
    plain = ids_of(run(Engine(target(), max_batch_size=1), requests))
    monkeypatch.setattr("entmtp.engine.request.FIRST_CAPACITY", 1)
    engine = Engine(target(), random_heads(target(), kind), StaticPolicy(TREE), max_batch_size=3)
    assert ids_of(run(engine, requests)) == plain
    assert engine.num_cache_bytes == 0
