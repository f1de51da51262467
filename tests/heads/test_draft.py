"""A draft equals what a slow reader of the definition would propose, node by node."""

from __future__ import annotations

import pytest
import torch

from draft_heads import hidden_states, random_heads
from entmtp.errors import HeadsError, TreeError
from entmtp.heads import DraftHeads, HeadsConfig, build_heads, check_tree
from entmtp.trees import Tree, chain, full, tree_buffers
from fixtures import tiny

KINDS = ("medusa", "hydra", "hydra++")
TREES = {
    "chain": chain(3),
    "full": full(3, 2),
    "sparse": Tree.from_paths([[1], [4], [1, 0], [1, 3], [4, 2], [4, 2, 5], [1, 3, 0]]),
}


def expected(
    heads: DraftHeads, context: torch.Tensor, root: int, path: tuple[int, ...]
) -> tuple[int, float]:
    """Token and log-probability of the node at `path`, from the definition alone."""
    tokens = [root]
    log_prob = 0.0
    for head, rank in enumerate(path):
        embedded = heads.embed(torch.tensor(tokens)).flatten() if heads.needs_path else None
        logits = heads.logits(head, heads.features(head, context, embedded)).float()
        log_probs, rows = logits.log_softmax(-1).sort(descending=True)
        log_prob = log_probs[rank].item()
        tokens.append(int(heads.to_target_ids(rows[rank])))
    return tokens[-1], log_prob


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("kind", KINDS)
def test_draft_equals_the_definition(kind: str, name: str) -> None:
    heads = random_heads(tiny(), kind)
    trees = (TREES[name], chain(2))
    contexts = torch.randn(2, heads.hidden_size, generator=torch.Generator().manual_seed(5))
    roots = torch.tensor([3, 6])
    buffers = tree_buffers(trees, torch.device("cpu"))
    draft = heads.draft(contexts, roots, buffers)
    assert draft.ids[:, 0].tolist() == roots.tolist()
    for row, tree in enumerate(trees):
        slots = buffers.valid[row].nonzero().flatten().tolist()
        for path, slot in zip(tree.paths, slots, strict=True):
            token, log_prob = expected(heads, contexts[row], int(roots[row]), path)
            assert int(draft.ids[row, slot]) == token, path
            assert draft.log_probs[row, slot].item() == pytest.approx(log_prob, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_vocabulary_proposes_target_ids(kind: str) -> None:
    target = tiny(vocab_size=40)
    full_heads = random_heads(target, kind)
    config = HeadsConfig(kind, target.hidden_size, 40, 4, 1, 9, "target", full_heads.config.prefix)
    heads = build_heads(config)
    heads.draft_ids.copy_(torch.arange(3, 30, 3))
    heads.bind(target)
    heads.eval().requires_grad_(False)
    buffers = tree_buffers((full(2, 3),), torch.device("cpu"))
    context = torch.randn(1, target.hidden_size, generator=torch.Generator().manual_seed(1))
    draft = heads.draft(context, torch.tensor([31]), buffers)
    assert set(draft.ids[0, 1:].tolist()) <= set(range(3, 30, 3))
    # Blocks start as the identity, so head 0's best is the target's own best of those ids.
    logits = target.logits(context)[0, heads.draft_ids]
    if kind != "hydra++":
        assert int(draft.ids[0, 1]) == int(heads.draft_ids[logits.argmax()])


@pytest.mark.parametrize("kind", KINDS)
def test_observing_in_pieces_equals_the_whole_row(kind: str) -> None:
    target = tiny()
    heads = random_heads(target, kind)
    ids = torch.randint(0, 8, (2, 30), generator=torch.Generator().manual_seed(2))
    hidden = hidden_states(target, ids)
    whole = heads.context(hidden)
    cache = heads.new_cache(2, 8)
    at = [0, 0]
    for counts in ([7, 7], [1, 1], [3, 2], [1, 5], [4, 1], [2, 2]):
        pieces = torch.full((2, max(counts), heads.hidden_size), 1e3)  # padding must not matter
        for row, count in enumerate(counts):
            pieces[row, :count] = hidden[row, at[row] : at[row] + count]
            at[row] += count
        context = heads.observe(pieces, cache, counts)
        for row in range(2):
            difference = (context[row] - whole[row, at[row] - 1]).abs().max()
            assert difference <= 1e-4, (counts, row)
    if cache is not None:
        assert list(cache.lengths) == at


@pytest.mark.parametrize("output", ["own", "target", "projected"])
def test_medusa_reads_all_heads_in_one_product(output: str) -> None:
    target = tiny()
    sizes = (target.hidden_size, target.vocab_size, 4, 2, target.vocab_size)
    heads = build_heads(HeadsConfig("medusa", *sizes, output))
    heads.bind(target)
    generator = torch.Generator().manual_seed(3)
    for weight in heads.parameters():
        weight.data.normal_(0.0, 0.3, generator=generator)
    context = torch.randn(3, heads.hidden_size, generator=generator)
    together = heads.all_logits(heads.all_features(context, 4))
    for head in range(4):
        alone = heads.logits(head, heads.features(head, context, None))
        assert torch.allclose(together[head], alone, atol=1e-4)


@pytest.mark.parametrize("kind", ["hydra", "hydra++"])
def test_only_medusa_heads_are_projected(kind: str) -> None:
    with pytest.raises(HeadsError, match="output target instead"):
        build_heads(HeadsConfig(kind, 64, 8, 4, 2, 8, "projected"))


def test_trees_that_heads_cannot_fill_are_named() -> None:
    heads = random_heads(tiny(), "medusa", 2)
    check_tree(heads, full(8, 2))
    with pytest.raises(TreeError, match=r"4 deep but there are 2 draft heads"):
        check_tree(heads, chain(4))
    with pytest.raises(TreeError, match=r"rank 8 .* 8 tokens"):
        check_tree(heads, Tree.from_paths([[8]]))
