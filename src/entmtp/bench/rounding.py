"""Is a difference between two methods' outputs rounding, or a fault? (case L02, DESIGN D3a)

In 16 bits one row and many rows go through different kernels, and near-ties may flip. At the
first difference of a prompt the common prefix is run once in 16 bits and once in float32, with
the same weights, and

    ratio = |float32 score of one token - that of the other| ÷ max |16-bit scores - float32 scores|

A gap no larger than twice the rounding error may close by rounding. The score is the logit behind
the processors; for drawn tokens it is that ÷ temperature plus the noise of the draw.

Knows: two targets and ids. Does not know: methods, trees.
"""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from entmtp.bench.moves import least_move
from entmtp.decode import History, Past, Record, Sampler, Sampling
from entmtp.decode.noise import gumbel_noise
from entmtp.target import TargetModel
from entmtp.target.output import is_plain

MAX_RATIO = 2.0
_SMALLEST_ERROR = 1e-9
"""Keeps a ratio a number where 16 bits happened to round nothing."""
_LARGEST_RATIO = 1e9


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
    num_prompt: int = 0,
) -> float:
    """The ratio for the two tokens that followed the same prefix.

    Where filters have a say, the gap is what the scores of the farther one would have to make up
    to be drawn: see `moves`.

    Args:
        num_prompt: how many of the prefix were not generated; penalties tell them apart.
    """
    record = Record(array("q", prefix_ids), num_prompt)
    ours, theirs = (_scores(target, record, sampling) for target in (rounded, exact))
    noise = _noise(record, sampling, theirs)
    error = (ours - theirs)[theirs.isfinite()].abs().max().item()
    if sampling.is_filtered and not sampling.is_greedy:
        gap = 2 * max(least_move(theirs, noise, token_id, sampling) for token_id in pair)
    else:
        gap = ((theirs + noise)[pair[0]] - (theirs + noise)[pair[1]]).abs().item()
    # A token that is ruled out is infinitely far away, which JSON has no word for.
    return min(gap / max(error, _SMALLEST_ERROR), _LARGEST_RATIO)


def _scores(target: TargetModel, record: Record, sampling: Sampling) -> torch.Tensor:
    """What the next token's noise is added to, `[V]`: processed, by temperature, not filtered."""
    ids = torch.tensor([list(record.ids)], device=target.device)
    for hidden in target.prefill(ids, target.new_cache(1, ids.shape[1])):
        last = hidden[:, -1:]
    sampler = Sampler([replace(sampling, top_k=0, top_p=1.0, min_p=0.0)], target.device)
    nodes = None
    if sampler.looks_back:
        position = torch.tensor([ids.shape[1]], device=target.device)
        nodes = Past(History.of([record], target.device), ()).nodes(position)
    return sampler.scores(target.logits(last), nodes)[0, 0]


def _noise(record: Record, sampling: Sampling, scores: torch.Tensor) -> torch.Tensor:
    """Of the next token's draw, `[V]`."""
    if sampling.is_greedy:
        return torch.zeros_like(scores)
    seed = torch.tensor([sampling.seed], device=scores.device)
    position = torch.tensor([len(record.ids)], device=scores.device)
    return gumbel_noise(seed, position, scores.shape[-1])[0]
