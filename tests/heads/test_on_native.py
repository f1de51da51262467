"""Heads on native kernels draft nearly what they draft in PyTorch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from draft_heads import contexts_of, random_heads
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import Draft, DraftHeads, HeadsConfig, build_heads, load_heads, save_heads
from entmtp.heads.on_native import NativeKernels
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


TREES = (
    (Tree.from_paths([[1], [4], [1, 0], [1, 3], [4, 2], [4, 2, 5], [1, 3, 0]]), chain(4)),
    (full(3, 3), chain(1), Tree.from_paths([[rank] for rank in range(19)])),
    (chain(4),),
)


@pytest.mark.parametrize(
    ("kind", "output"),
    [(kind, output) for kind in KINDS for output in ("own", "target")] + [("medusa", "projected")],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_drafts_are_near(kind: str, output: str, dtype: torch.dtype) -> None:
    """Of each node: its id, and how likely it is, are what its rank among the parent's children
    says."""
    heads = made(kind, output).to(dtype)
    fast = drafting_natively(heads)
    for trees in TREES:
        buffers = tree_buffers(trees, torch.device("cpu"))
        context = torch.randn(len(trees), 64, generator=torch.Generator().manual_seed(1)).to(dtype)
        draft = fast.draft(context, torch.arange(len(trees)), buffers)
        for row, tree in enumerate(trees):
            for node in range(1, tree.num_nodes):
                depth, rank = tree.depths[node], tree.paths[node][-1]
                way = buffers.ancestors[row, node, :depth]
                path = heads.embed(draft.ids[row, way]).flatten() if heads.needs_path else None
                features = heads.features(depth - 1, context[row], path)
                exact = heads.logits(depth - 1, features).float().log_softmax(-1)
                near = 0.2 * exact.std()
                log_prob = exact[draft.ids[row, node] - 5]
                assert (draft.log_probs[row, node] - log_prob).abs() < near
                # As good a choice, if not the same.
                assert (exact.sort(descending=True).values[rank] - log_prob).abs() < near


@pytest.mark.parametrize("kind", ["hydra", "medusa"])
@torch.inference_mode()
def test_levels_at_once_are_what_one_by_one_are(kind: str) -> None:
    heads = drafting_natively(made(kind, "target"))
    for trees in TREES:
        buffers = tree_buffers(trees, torch.device("cpu"))
        roots, context = torch.arange(len(trees)), torch.randn(len(trees), 64)
        at_once, in_turn = heads.draft(context, roots, buffers), Draft.empty(roots, buffers)
        for _ in heads.fill(in_turn, context, buffers):
            pass
        assert torch.equal(at_once.ids, in_turn.ids)
        assert torch.equal(at_once.log_probs, in_turn.log_probs)


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
    fill = NativeKernels.fill
    monkeypatch.setattr(NativeKernels, "fill", lambda *each: asked.append(each[-1]) or fill(*each))
    draft = Draft.empty(torch.tensor([1]), buffers)
    for depth in heads.fill(draft, torch.randn(1, 64), buffers):
        if depth == 2:
            break
    assert asked == [range(1), range(1, 2)]


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
