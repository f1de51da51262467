"""The optimiser and its learning rate over the steps of a run.

Knows: parameters, steps. Does not know: heads, data.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from entmtp.train.config import TrainConfig


def make_optimiser(module: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW; weight decay on matrices, not on biases and norms."""
    matrices: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, value in module.named_parameters():
        (rest if "bias" in name or value.ndim < 2 else matrices).append(value)
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, config.beta2), fused=True)


def learning_rate(step: int, num_steps: int, config: TrainConfig) -> float:
    """Linear warm-up, then half a cosine down to `final_lr_share` of the highest."""
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    span = max(1, num_steps - config.warmup_steps)
    phase = min(1.0, (step - config.warmup_steps) / span)
    share = config.final_lr_share
    return config.lr * (share + (1.0 - share) * 0.5 * (1.0 + math.cos(math.pi * phase)))
