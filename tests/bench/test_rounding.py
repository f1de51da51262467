"""Case L02: what is rounding and what is a fault."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from draft_heads import random_heads
from entmtp.bench import Difference, Method, Task, compare
from entmtp.bench.rounding import MAX_RATIO, first_difference, float32_twin, rounding_ratio
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams, drafting
from entmtp.scheduler import PlainPolicy, StaticPolicy
from entmtp.target import TargetModel
from entmtp.trees import TreeBuffers, full, tree_buffers
from fixtures import tiny
from reference import random_prompts
from runtimes import needs_openvino, on_openvino

NUM_PROMPTS = 8


def differences(
    target: TargetModel, sampling: Sampling | None = None, seed: int = 0
) -> tuple[Difference, ...]:
    """Of a tree that always holds the way, to plain decoding."""
    prompts = random_prompts(NUM_PROMPTS, target.vocab_size, longest=40, seed=seed)
    tasks = [Task(str(index), "", tuple(prompt)) for index, prompt in enumerate(prompts)]
    plain = Method("plain", Engine(target, policy=PlainPolicy()))
    tree = StaticPolicy(full(8, 2))
    drafted = Method("hydra-best", Engine(target, random_heads(target, "hydra"), tree))
    params = GenerationParams(24, sampling or Sampling())
    return compare([plain, drafted], tasks, params).differences


def break_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every node see the nodes of the level above and of its own that came before it."""

    def siblings_visible(*arguments: object) -> TreeBuffers:
        buffers = tree_buffers(*arguments)  # type: ignore[arg-type]
        slots = torch.arange(buffers.num_slots)
        return dataclasses.replace(buffers, mask=(slots <= slots[:, None])[None])

    monkeypatch.setattr(drafting, "tree_buffers", siblings_visible)


PROCESSED = {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "banned_ids": ((1,), (2, 3))}
SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.9, seed=5),
    Sampling(temperature=1.5, top_k=3, seed=5),
    Sampling(temperature=1.5, top_p=0.7, min_p=0.1, seed=5),
    Sampling(**PROCESSED),  # type: ignore[arg-type]
    Sampling(temperature=1.5, top_p=0.9, seed=5, **PROCESSED),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(
    ("sampling", "seed"), list(zip(SAMPLINGS, (0, 1, 2, 1, 0, 4), strict=True))
)
def test_L02_honest_differences_are_rounding(sampling: Sampling, seed: int) -> None:
    """These prompts have near-ties that flip."""
    found = differences(tiny(dtype=torch.bfloat16), sampling, seed)
    assert found
    assert all(one.verdict == "rounding" for one in found)
    assert all(one.ratio is not None and one.ratio <= MAX_RATIO for one in found)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_L02_a_wrong_mask_is_a_fault(sampling: Sampling, monkeypatch: pytest.MonkeyPatch) -> None:
    break_mask(monkeypatch)
    found = differences(tiny(dtype=torch.bfloat16), sampling)
    assert len(found) >= NUM_PROMPTS - 1
    num_faults = sum(one.verdict == "fault" for one in found)
    assert num_faults > NUM_PROMPTS // 2
    assert max(one.ratio or 0.0 for one in found) > 5 * MAX_RATIO


def test_L02_in_float32_nothing_differs() -> None:
    assert differences(tiny()) == ()


def test_L02_in_float32_any_difference_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    break_mask(monkeypatch)
    found = differences(tiny())
    assert found
    assert all(one.verdict == "fault" and one.ratio is None for one in found)


@needs_openvino
def test_in_int8_a_difference_is_never_called_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    target = on_openvino("llama", "int8")
    assert differences(target) == ()
    break_mask(monkeypatch)
    found = differences(target)
    assert found
    assert all(one.verdict == "fault" and one.ratio is None for one in found)
    monkeypatch.setattr(target, "exact_length", 0)
    found = differences(target)
    assert found
    assert all(one.verdict == "unjudged" and one.ratio is None for one in found)


@needs_openvino
def test_L02_in_bfloat16_a_wrong_mask_is_a_fault_on_openvino(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_mask(monkeypatch)
    found = differences(on_openvino("llama", "bfloat16"))
    assert max(one.ratio or 0.0 for one in found) > 5 * MAX_RATIO


def test_L02_the_ratio_is_gap_over_rounding_error() -> None:
    rounded = tiny(dtype=torch.bfloat16)
    exact = float32_twin(rounded)
    assert exact.dtype == torch.float32
    assert exact.fingerprint == rounded.fingerprint
    prefix = [1, 2, 3]
    ids = torch.tensor([prefix])
    ours, theirs = (
        target.logits(list(target.prefill(ids, target.new_cache(1, 3)))[-1][0, -1])
        for target in (rounded, exact)
    )
    expected = abs(theirs[4] - theirs[6]) / (ours - theirs).abs().max()
    ratio = rounding_ratio(rounded, exact, prefix, (4, 6), Sampling())
    assert ratio == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(
    ("one", "other", "index"),
    [([1, 2], [1, 2], None), ([], [], None), ([1, 2], [1, 3], 1), ([1, 2], [1], 1), ([], [4], 0)],
)
def test_the_first_difference(one: list[int], other: list[int], index: int | None) -> None:
    assert first_difference(one, other) == index
