"""Heads on OpenVINO draft what they draft in PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draft_heads import contexts_of, random_heads
from entmtp.heads import DraftHeads, HeadsConfig, build_heads, load_heads, save_heads
from entmtp.heads.on_openvino import NUM_CHILDREN, draft_on_openvino
from entmtp.trees import Tree, chain, full, tree_buffers
from fixtures import tiny
from runtimes import drafting_on_openvino, graphs_in, needs_openvino, on_openvino

pytestmark = needs_openvino

KINDS = ("medusa", "hydra", "hydra++")
SPARSE = Tree.from_paths([[1], [4], [1, 0], [1, 3], [4, 2], [4, 2, 5], [1, 3, 0]])
WIDE = Tree.from_paths([[rank] for rank in range(NUM_CHILDREN + 3)] + [[2, NUM_CHILDREN + 1]])


def contexts(heads: DraftHeads, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(count, heads.hidden_size, generator=generator)


@pytest.mark.parametrize("output", ["own", "target", "projected"])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_draft_is_the_same(kind: str, output: str) -> None:
    if output == "projected" and kind != "medusa":
        return
    target = tiny(vocab_size=40)
    random = random_heads(target, kind)
    config = HeadsConfig(kind, target.hidden_size, 40, 4, 2, 30, output, random.config.prefix)
    heads = build_heads(config)
    generator = torch.Generator().manual_seed(3)
    for weight in heads.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    assert heads.draft_ids is not None
    heads.draft_ids.copy_(torch.arange(5, 35))
    heads.bind(target)
    heads.eval().requires_grad_(False)
    fast = drafting_on_openvino(heads, on_openvino(vocab_size=40))
    for trees in ((SPARSE,), (WIDE,), (SPARSE, chain(4)), (full(3, 3), WIDE, chain(1))):
        buffers = tree_buffers(trees, torch.device("cpu"))
        roots = torch.arange(len(trees))
        slow, quick = (h.draft(contexts(h, len(trees)), roots, buffers) for h in (heads, fast))
        valid = buffers.valid
        assert torch.equal(slow.ids[valid], quick.ids[valid])
        assert (slow.log_probs - quick.log_probs)[valid].abs().max() < 1e-4


@torch.inference_mode()
def test_contexts_of_a_prefix_layer_are_the_same() -> None:
    heads = random_heads(tiny(), "hydra++")
    for slow, quick in contexts_of(heads, drafting_on_openvino(heads, on_openvino())):
        assert (slow - quick).abs().max() < 1e-4


@pytest.mark.parametrize("number_format", ["bfloat16", "int8"])
@torch.inference_mode()
def test_other_formats_are_near(number_format: str) -> None:
    heads = random_heads(tiny(), "hydra++")
    fast = drafting_on_openvino(heads, on_openvino("llama", number_format))
    buffers = tree_buffers((chain(1),) * 50, torch.device("cpu"))
    slow, quick = (h.draft(contexts(h, 50), torch.arange(50) % 8, buffers) for h in (heads, fast))
    assert (slow.ids == quick.ids).float().mean() > 0.9
    assert not torch.equal(slow.log_probs, quick.log_probs)


def test_loading_puts_them_there_and_exports_once(tmp_path: Path) -> None:
    save_heads(random_heads(tiny(), "hydra"), tmp_path / "heads", tiny(), {}, torch.float32)
    said: list[str] = []
    with graphs_in(tmp_path / "cache"):
        assert load_heads(tmp_path / "heads", tiny()).kernels is None
        for _ in range(2):
            fast = load_heads(tmp_path / "heads", on_openvino(), said.append)
            assert fast.kernels is not None
        assert said == ["exporting hydra heads to OpenVINO, float32 (once)"]
        fast.first[0].linear.bias += 1  # type: ignore[union-attr, operator]
        draft_on_openvino(fast, on_openvino(), said.append)
    assert len(said) == 2
