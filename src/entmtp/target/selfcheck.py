"""Trust nothing: does this model really see a tree as a tree?

Knows: the target's protocol, and `transformers`' own plain forward to compare with. Does not
know: architectures: a model is refused for what it does, not for what it is called (DESIGN D2).
"""

from __future__ import annotations

import torch

from entmtp.errors import ModelRefused
from entmtp.target.attention import ATTENTION_NAME
from entmtp.target.model import TargetModel, refusing_misfits
from entmtp.trees import Tree, tree_buffers

_PROMPT_LENGTH = 13
_TREE = Tree.from_paths([(0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (1, 0, 0), (1, 1, 0)])
_KEPT_PATH = (1, 1, 0)  # not the first rows: `keep` must move some
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.4, "float16": 0.1, "int8": 0.6}
"""Mean absolute difference of logits allowed, in standard deviations of the logits. For
SmolLM2-135M rounding came to 4e-6, 0.14 and 0.02; a mask that hides nothing, to 1.7 in each."""


@torch.inference_mode()
def self_check(target: TargetModel) -> None:
    """Compare a small tree of random ids, and what follows it, with plain sequential decoding.

    Raises:
        ModelRefused: the logits differ by more than rounding, or there are none.
    """
    with refusing_misfits(target.transformers_model):
        _check(target)


def _check(target: TargetModel) -> None:
    generator = torch.Generator().manual_seed(0)
    draw = torch.randint(
        target.vocab_size, (1, _PROMPT_LENGTH + _TREE.num_nodes + 1), generator=generator
    ).to(target.device)
    prompt, nodes = draw[:, :_PROMPT_LENGTH], draw[:, _PROMPT_LENGTH:-1]
    buffers = tree_buffers((_TREE,), target.device)
    cache = target.new_cache(1, _PROMPT_LENGTH + _TREE.num_nodes + 1)
    for _ in target.prefill(prompt, cache):
        pass
    tree = target.forward(nodes, cache.length + buffers.depths, buffers.mask, cache)
    for path, node in zip(_TREE.paths, range(_TREE.num_nodes), strict=True):
        ids = torch.cat([prompt, nodes[:, _nodes_on(path)]], 1)
        _compare(target, tree[:, node], ids, "a tree of drafts")
    kept = _nodes_on(_KEPT_PATH)
    cache.keep(torch.tensor([kept], device=target.device), [len(kept)])
    last = draw[:, -1:]
    one = torch.ones(1, 1, 1, dtype=torch.bool, device=target.device)
    after = target.forward(last, torch.full_like(last, cache.length), one, cache)
    ids = torch.cat([prompt, nodes[:, kept], last], 1)
    _compare(target, after[:, 0], ids, "the token behind accepted drafts")


def _nodes_on(path: tuple[int, ...]) -> list[int]:
    return [_TREE.paths.index(path[:depth]) for depth in range(len(path) + 1)]


def _compare(target: TargetModel, hidden: torch.Tensor, ids: torch.Tensor, what: str) -> None:
    got, expected = target.logits(hidden), _reference_logits(target, ids)
    difference = ((got - expected).abs().mean() / expected.std()).item()
    limit = _TOLERANCE[target.number_format]
    if not difference <= limit:
        raise ModelRefused(
            f"{target.config.model_type} computes other logits for {what} than for plain text"
            f" (off by {difference:.2g} standard deviations, {limit:g} allowed): it ignores the"
            " tree mask or keeps state of its own; use another model"
        )


def _reference_logits(target: TargetModel, ids: torch.Tensor) -> torch.Tensor:
    """Logits `[1, V]` behind the last of `ids`, by `transformers` alone: no cache, its own mask."""
    model = target.transformers_model
    model.set_attn_implementation("sdpa" if getattr(model, "_supports_sdpa", False) else "eager")
    try:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[:, -1]
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return logits.float()
