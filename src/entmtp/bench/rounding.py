"""Is a difference between two methods' outputs rounding, or a fault? (case L02, DESIGN D3a)

In 16 bits one row and many rows go through different kernels, and near-ties may flip. At the
first difference of a prompt the common prefix is run once in 16 bits and once in float32, with
the same weights, and

    ratio = |float32 score of one token - that of the other| ÷ max |16-bit scores - float32 scores|

A gap no larger than twice the rounding error may close by rounding. The score is the logit; for
drawn tokens it is logit ÷ temperature plus the noise of the draw.

Knows: two targets and ids. Does not know: methods, trees.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from entmtp.decode import Sampling
from entmtp.decode.noise import gumbel_noise
from entmtp.target import TargetModel
from entmtp.target.output import is_plain

MAX_RATIO = 2.0
_SMALLEST_ERROR = 1e-9
"""Keeps a ratio a number where 16 bits happened to round nothing."""


def first_difference(expected: Sequence[int], got: Sequence[int]) -> int | None:
    """The first index at which two outputs differ, one of them ending included."""
    for index, (one, other) in enumerate(zip(expected, got, strict=False)):
        if one != other:
            return index
    return None if len(expected) == len(got) else min(len(expected), len(got))


def float32_twin(target: TargetModel) -> TargetModel:
    """The same weights, widened and unpacked: what 16-bit arithmetic is compared with."""
    model = copy.deepcopy(target.transformers_model)
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            if not is_plain(weight):
                setattr(module, name, nn.Parameter(weight.dequantize(), requires_grad=False))
    nn.Module.float(model)  # `transformers` refuses it for a model that ever was quantised
    return TargetModel.from_transformers(model, target.tokenizer, target.name)


@torch.inference_mode()
def rounding_ratio(
    rounded: TargetModel,
    exact: TargetModel,
    prefix_ids: Sequence[int],
    pair: tuple[int, int],
    sampling: Sampling,
) -> float | None:
    """The ratio for the two tokens that followed the same prefix.

    None where it says nothing: with top-k, top-p or min-p a token may be drawn or not for the
    rounding of another one's probability. Nor of processed logits, which are not looked at here.
    """
    if sampling.is_processed or (sampling.is_filtered and not sampling.is_greedy):
        return None
    ours, theirs = (_scores(target, prefix_ids, sampling) for target in (rounded, exact))
    error = (ours - theirs).abs().max().item()
    gap = (theirs[pair[0]] - theirs[pair[1]]).abs().item()
    return float(gap / max(error, _SMALLEST_ERROR))


def _scores(target: TargetModel, prefix_ids: Sequence[int], sampling: Sampling) -> torch.Tensor:
    """What the next token is the largest of, `[V]`."""
    ids = torch.tensor([list(prefix_ids)], device=target.device)
    for hidden in target.prefill(ids, target.new_cache(1, ids.shape[1])):
        last = hidden[:, -1]
    logits = target.logits(last)
    if sampling.is_greedy:
        return logits[0]
    seed = torch.tensor([sampling.seed], device=target.device)
    position = torch.tensor([ids.shape[1]], device=target.device)
    return (logits / sampling.temperature + gumbel_noise(seed, position, logits.shape[-1]))[0]
