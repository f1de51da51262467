"""Top-1 probability and entropy of the distribution behind committed text.

Knows: logits. Does not know: policies, trees, what the numbers are for.

Dimension key: B batch · V vocabulary.
"""

from __future__ import annotations

import torch

_NEVER = -1e4
"""Its exponential is 0, and unlike that of -inf it stays 0 times the number."""


def root_signals(logits: torch.Tensor) -> torch.Tensor:
    """Top-1 probability and entropy in nats, `[B, 2]` float32, of softmax(logits `[B, V]`).

    With x the logits less their largest, Z the sum of e^x and p = e^x / Z, the largest p is 1 / Z
    and the entropy is log Z - the sum of p x: one exponential of each logit and no logarithm, for
    this is paid in every step.
    """
    numbers = logits.float()
    below = (numbers - numbers.amax(-1, keepdim=True)).clamp_(min=_NEVER)
    weights = below.exp()
    total = weights.sum(-1)
    entropy = total.log() - weights.mul_(below).sum(-1) / total
    return torch.stack([1 / total, entropy.clamp_(min=0.0)], -1)
