"""Heads on native kernels draft nearly what they draft in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draft_heads import contexts_of, random_heads
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import Draft, DraftHeads, HeadsConfig, build_heads, load_heads, save_heads
from entmtp.heads.base import HeadKernels
from entmtp.heads.on_native import NUM_CHILDREN, NativeKernels
from entmtp.scheduler import StaticPolicy
from entmtp.trees import Tree, chain, full, tree_buffers
from fixtures import tiny
from runtimes import drafting_natively, needs_native, on_native

pytestmark = needs_native

KINDS = ("medusa", "hydra", "hydra++")


def made(kind: str, output: str) -> DraftHeads:
    """Random heads over 30 of 40 ids."""
    target = tiny(vocab_size=40)
    prefix = random_heads(target, kind).config.prefix
    heads = build_heads(HeadsConfig(kind, target.hidden_size, 40, 4, 2, 30, output, prefix))
    generator = torch.Generator().manual_seed(3)
    for weight in heads.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    assert heads.draft_ids is not None
    heads.draft_ids.copy_(torch.arange(5, 35))
    heads.bind(target)
    return heads.eval().requires_grad_(False)


def kernels_of(heads: DraftHeads) -> HeadKernels:
    fast = drafting_natively(heads).kernels
    assert fast is not None
    return fast


@pytest.mark.parametrize(
    ("kind", "output"),
    [(kind, output) for kind in KINDS for output in ("own", "target")] + [("medusa", "projected")],
)
@torch.inference_mode()
def test_children_are_near(kind: str, output: str) -> None:
    heads = made(kind, output)
    fast = kernels_of(heads)
    generator = torch.Generator().manual_seed(1)
    context = torch.randn(6, heads.hidden_size, generator=generator)
    for head in range(heads.num_draft_heads):
        path = None
        if heads.needs_path:
            ids = torch.randint(40, (6, head + 1), generator=generator)
            path = heads.embed(ids).flatten(1)
            children = fast.children(head, context[None], path[None], 3)
            log_probs, best = children.log_probs[0], children.ids[0]
        else:
            children = fast.children_of_all(context, [3] * (head + 1))[head]
            log_probs, best = children.log_probs[:, 0], children.ids[:, 0]
        logits = heads.logits(head, heads.features(head, context, path))
        exact = logits.log_softmax(-1)
        at = exact.gather(1, best - 5)
        spread = exact.std()
        assert (at - log_probs).abs().max() < 0.2 * spread
        top = exact.topk(3).values
        assert (top[:, 0] - at[:, 0]).max() < 0.2 * spread  # as good a choice, if not the same
        assert (log_probs.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("kind", ["hydra", "hydra++"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_a_level_at_once_is_what_children_one_by_one_are(kind: str, dtype: torch.dtype) -> None:
    heads = made(kind, "target").to(dtype)
    at_once, one_by_one = (drafting_natively(heads) for _ in range(2))
    trees = (
        (Tree.from_paths([[1], [4], [1, 0], [1, 3], [4, 2], [4, 2, 5], [1, 3, 0]]), chain(4)),
        (full(3, 3), chain(1), Tree.from_paths([[rank] for rank in range(NUM_CHILDREN + 3)])),
    )
    for some in trees:
        buffers = tree_buffers(some, torch.device("cpu"))
        roots = torch.arange(len(some))
        context = torch.randn(len(some), 64, generator=torch.Generator().manual_seed(1))
        drafts = [at_once.draft(context, roots, buffers)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(NativeKernels, "fill_level", HeadKernels.fill_level)
            drafts.append(one_by_one.draft(context, roots, buffers))
        ids, log_probs = (
            [getattr(draft, name)[buffers.valid] for draft in drafts]
            for name in ("ids", "log_probs")
        )
        assert torch.equal(*ids)
        assert torch.allclose(*log_probs, atol=1e-5)


@torch.inference_mode()
def test_more_children_than_a_kernel_picks() -> None:
    heads = made("hydra", "target")
    context, path = torch.randn(1, 2, 64), torch.randn(1, 2, 64)
    fast = kernels_of(heads)
    few, many = (fast.children(0, context, path, count) for count in (3, NUM_CHILDREN + 5))
    assert many.ids.shape == (1, 2, NUM_CHILDREN + 5)
    assert torch.equal(few.ids[..., :3], many.ids[..., :3])
    assert torch.allclose(few.log_probs[..., :3], many.log_probs[..., :3], atol=1e-5)


@torch.inference_mode()
def test_contexts_of_a_prefix_layer_are_near() -> None:
    heads = random_heads(tiny(), "hydra++")
    for slow, quick in contexts_of(heads, drafting_natively(heads)):
        assert (slow - quick).abs().mean() < 0.1 * slow.std()


@torch.inference_mode()
def test_levels_that_nobody_wants_are_not_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = drafting_natively(random_heads(tiny(), "hydra"))
    buffers = tree_buffers((chain(4),), torch.device("cpu"))
    asked = []
    fill_level = NativeKernels.fill_level
    monkeypatch.setattr(
        NativeKernels, "fill_level", lambda *each: asked.append(each[1]) or fill_level(*each)
    )
    draft = Draft.empty(torch.tensor([1]), buffers)
    for depth in heads.fill(draft, torch.randn(1, 64), buffers):
        if depth == 2:
            break
    assert asked == [0, 1]


def test_loaded_heads_draft_where_their_target_runs(tmp_path: Path) -> None:
    save_heads(random_heads(tiny(), "medusa"), tmp_path / "heads", tiny(), {}, torch.float32)
    assert isinstance(load_heads(tmp_path / "heads", on_native()).kernels, NativeKernels)


def test_heads_of_odd_widths_draft_in_pytorch(tmp_path: Path) -> None:
    heads = random_heads(tiny(), "hydra++")
    assert heads.config.prefix is not None
    prefix = replace(heads.config.prefix, intermediate_size=96)
    odd = build_heads(replace(heads.config, prefix=prefix))
    save_heads(odd, tmp_path / "heads", tiny(), {}, torch.float32)
    loaded = load_heads(tmp_path / "heads", on_native())
    assert loaded.kernels is None
    result = Engine(on_native(), loaded, StaticPolicy(chain(2))).generate(
        [1, 2], GenerationParams(9)
    )
    assert result.token_ids == Engine(on_native()).generate([1, 2], GenerationParams(9)).token_ids
