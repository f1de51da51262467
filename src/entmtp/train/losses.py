"""Losses of one head: cross-entropy against the target's own distribution, or the data's tokens.

Knows: features, output rows, label distributions over a few rows. Does not know: heads, batches.

Labels may reach beyond the draft vocabulary; what lies outside has row -1 and no weight, so a
position counts as much as the draft vocabulary covers of it.

Dimension key: N positions · H hidden size · W draft vocabulary · C labelled rows of a position.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import linear

from entmtp.train.arithmetic import current

CHUNK = 256
"""Positions whose logits exist at one time: `[256, W]` float32 stays in the last-level cache."""


class FrozenCrossEntropy(torch.autograd.Function):
    """Cross-entropy through an output layer that is not trained.

    The gradient with respect to the features is computed in the forward pass, chunk by chunk,
    while the probabilities are at hand: no `[N, W]` tensor is kept, and nothing is done twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        features: torch.Tensor,  # [N, H]
        weight: torch.Tensor,  # [W, H]
        bias: torch.Tensor | None,  # [W]
        rows: torch.Tensor,  # [N, C] long, -1 outside the draft vocabulary
        probs: torch.Tensor,  # [N, C]
    ) -> torch.Tensor:
        dtype = current(features)
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        inside = probs * (rows >= 0)
        mass = inside.sum(1, keepdim=True)
        shares = inside / mass.clamp_min(1e-9)
        places = rows.clamp_min(0)
        gradient = torch.empty_like(features)
        total = features.new_zeros(())
        for start in range(0, features.shape[0], CHUNK):
            part = slice(start, start + CHUNK)
            predicted = linear(features[part].to(dtype), weight, bias).to(probs).softmax(-1)
            found = predicted.gather(1, places[part]).clamp_min(1e-30)
            total -= (inside[part] * found.log()).sum()
            predicted.scatter_add_(1, places[part], -shares[part])
            gradient[part] = (predicted.to(dtype) @ weight) * mass[part]
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grad_outputs[0], None, None, None, None


def cross_entropy(
    features: torch.Tensor,  # [N, H]
    weight: torch.Tensor,  # [W, H]
    bias: torch.Tensor | None,
    rows: torch.Tensor,  # [N, C]
    probs: torch.Tensor,  # [N, C]
) -> torch.Tensor:
    """Sum over positions of the cross-entropy against `probs` at `rows`, in nats."""
    features = features.to(probs)
    if not weight.requires_grad:
        fused: Callable[..., torch.Tensor] = FrozenCrossEntropy.apply
        return fused(features, weight, bias, rows, probs)
    inside = probs * (rows >= 0)
    log_probs = linear(features, weight, bias).log_softmax(-1)
    return -(inside * log_probs.gather(1, rows.clamp_min(0))).sum()


def mix_labels(
    teacher_ids: torch.Tensor,  # [N, C]
    teacher_probs: torch.Tensor,  # [N, C]
    token_ids: torch.Tensor,  # [N]
    hard_share: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Label ids and probabilities `[N, C + 1]`: the teacher's, and `hard_share` on the data's."""
    ids = torch.cat([teacher_ids, token_ids[:, None]], dim=1)
    hard = torch.full_like(teacher_probs[:, :1], hard_share)
    return ids, torch.cat([teacher_probs * (1.0 - hard_share), hard], dim=1)
