"""Case M12: heads stored in one number format, a target held in another."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
import torch

from draft_heads import random_heads
from entmtp.bench import Method, Task, compare
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import load_heads, save_heads
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import full
from fixtures import tiny_model
from reference import random_prompts

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@lru_cache
def target_of(dtype: torch.dtype) -> TargetModel:
    """One model, of weights that every format holds, as one published in bfloat16 has them."""
    return TargetModel.from_transformers(tiny_model(dtype=torch.bfloat16).to(dtype), name="tiny")


MIXES = [("hydra++", stored, held) for stored in FLOATS for held in FLOATS]
MIXES += [("medusa", torch.float32, torch.bfloat16), ("hydra", torch.float16, torch.float32)]


@pytest.mark.parametrize(("kind", "stored", "held"), MIXES)
def test_M12_any_mix_of_formats(
    kind: str, stored: torch.dtype, held: torch.dtype, tmp_path: Path
) -> None:
    """The law in float32; in 16 bits nothing but rounding."""
    trained_for, target = target_of(torch.float32), target_of(held)
    save_heads(random_heads(trained_for, kind), tmp_path, trained_for, {}, stored)
    heads = load_heads(tmp_path, target)
    assert {weight.dtype for weight in heads.parameters()} == {held}
    engine = Engine(target, heads, StaticPolicy(full(4, 2)))
    prompts = random_prompts(3, target.vocab_size, longest=20)
    tasks = [Task(str(index), "", tuple(prompt)) for index, prompt in enumerate(prompts)]
    methods = [Method("plain", Engine(target)), Method("drafted", engine)]
    comparison = compare(methods, tasks, GenerationParams(16))
    assert comparison.figures[1].num_accepted_tokens > 0
    assert comparison.faults == ()
    if held == torch.float32:
        assert comparison.differences == ()
