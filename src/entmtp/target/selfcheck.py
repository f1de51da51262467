"""Trust nothing: does this model really see a tree as a tree?

Knows: the target's protocol, and the model's own plain forward to compare with. Does not know:
architectures: a model is refused for what it does, not for what it is called (DESIGN D2).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from entmtp.errors import ModelRefused
from entmtp.target.layout import refusing_misfits
from entmtp.target.model import TargetModel
from entmtp.target.plain import PlainTarget
from entmtp.trees import Tree, tree_buffers

_PROMPT_LENGTH = 13
_TREE = Tree.from_paths([(0,), (1,), (2,), (0, 0), (1, 0), (1, 1), (1, 0, 0), (1, 1, 0)])
_WINDOW = 6
_KEPT_PATH = (1, 1, 0)  # not the first rows: `keep` must move some
_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.4, "float16": 0.1, "int8": 0.6}
"""Mean absolute difference of logits allowed, in standard deviations of the logits. For
SmolLM2-135M rounding came to 4e-6, 0.14 and 0.02, and to 0.37 in int8; a mask that hides nothing,
to 1.7 in each."""

_OTHER_STEPS = "it attends, or makes logits, in a way of its own that entmtp does not know"
_NO_TREES = "it ignores the tree mask or keeps state of its own"


@torch.inference_mode()
def self_check(target: TargetModel) -> None:
    """Compare a small tree of random ids, and what follows it, with plain sequential decoding.

    What it is compared with is the model's own: its attention as shipped, its masks, its output.

    Raises:
        ModelRefused: the logits differ by more than rounding, or there are none.
    """
    with refusing_misfits(target.transformers_model), _narrowed(target) as narrow:
        _check(narrow)


@torch.inference_mode()
def plain_check(target: PlainTarget) -> None:
    """Compare a prompt and two tokens behind it, one by one, with whole forwards.

    Raises:
        ModelRefused: not even plain decoding gives the model's own logits.
    """
    ids = _random_ids(target, _PROMPT_LENGTH + 2)
    with refusing_misfits(target.transformers_model):
        cache = target.new_cache(1, ids.shape[1])
        hidden = list(target.prefill(ids[:, :_PROMPT_LENGTH], cache))[-1]
        for length in range(_PROMPT_LENGTH, ids.shape[1] + 1):
            _compare(target, hidden[:, -1], ids[:, :length], "plain decoding", _OTHER_STEPS)
            if length < ids.shape[1]:
                one = ids[:, length : length + 1]
                hidden = target.forward(one, one, one, cache)
                cache.advance([1])


@contextmanager
def _narrowed(target: TargetModel) -> Iterator[TargetModel]:
    """The target with a sliding window, if it has one, that the few tokens of the check outgrow.

    Its own masks are made from the configuration, so both sides have the narrow one.
    """
    window = target.architecture.window
    if window is None or window <= _WINDOW:
        yield target
        return
    target.config.sliding_window = _WINDOW
    try:
        yield target.with_window(_WINDOW)
    finally:
        target.config.sliding_window = window


def _check(target: TargetModel) -> None:
    draw = _random_ids(target, _PROMPT_LENGTH + _TREE.num_nodes + 1)
    prompt, nodes = draw[:, :_PROMPT_LENGTH], draw[:, _PROMPT_LENGTH:-1]
    buffers = tree_buffers((_TREE,), target.device)
    cache = target.new_cache(1, _PROMPT_LENGTH + _TREE.num_nodes + 1)
    hidden = list(target.prefill(prompt, cache))[-1]
    _compare(target, hidden[:, -1], prompt, "a prompt", _OTHER_STEPS)
    tree = target.forward(nodes, cache.length + buffers.depths, buffers.mask, cache)
    for path, node in zip(_TREE.paths, range(_TREE.num_nodes), strict=True):
        ids = torch.cat([prompt, nodes[:, _nodes_on(path)]], 1)
        _compare(target, tree[:, node], ids, "a tree of drafts", _NO_TREES)
    kept = _nodes_on(_KEPT_PATH)
    cache.keep(torch.tensor([kept], device=target.device), [len(kept)])
    last = draw[:, -1:]
    one = torch.ones(1, 1, 1, dtype=torch.bool, device=target.device)
    after = target.forward(last, torch.full_like(last, cache.length), one, cache)
    ids = torch.cat([prompt, nodes[:, kept], last], 1)
    _compare(target, after[:, 0], ids, "the token behind accepted drafts", _NO_TREES)


def _random_ids(target: TargetModel, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(target.vocab_size, (1, count), generator=generator).to(target.device)


def _nodes_on(path: tuple[int, ...]) -> list[int]:
    return [_TREE.paths.index(path[:depth]) for depth in range(len(path) + 1)]


def _compare(
    target: TargetModel, hidden: torch.Tensor, ids: torch.Tensor, what: str, why: str
) -> None:
    got, expected = target.logits(hidden), _own_logits(target, ids)
    difference = ((got - expected).abs().mean() / expected.std()).item()
    limit = _TOLERANCE[target.number_format]
    if not difference <= limit:
        raise ModelRefused(
            f"{target.config.model_type} computes other logits for {what} than for whole text"
            f" (off by {difference:.2g} standard deviations, {limit:g} allowed): {why};"
            " use another model"
        )


def _own_logits(target: TargetModel, ids: torch.Tensor) -> torch.Tensor:
    """Logits `[1, V]` behind the last of `ids`, by the model alone: no cache, its own mask."""
    with target.own_attention() as model:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[:, -1]
    return logits.float()
