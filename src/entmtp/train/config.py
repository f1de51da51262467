"""How heads are trained: the only source of defaults.

Knows: names, types, defaults and a line of help for each. The command's flags are made from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def _option(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class TrainConfig:
    """Every choice of a training run; a run is repeatable from it and the rows."""

    kind: str = _option("hydra++", "medusa, hydra or hydra++")
    num_draft_heads: int = _option(4, "heads, that is, the deepest draft")
    num_layers: int = _option(3, "residual blocks of each head")
    draft_vocab_size: int = _option(8192, "output rows, the most frequent ids; 0 = all ids")
    output: str = _option("target", "target: the model's own output rows, frozen; own: trained")
    prefix_start: str = _option(
        "target", "hydra++ layer starts from: target (its last layer), random"
    )

    epochs: float = _option(3.0, "passes over the training rows")
    batch_tokens: int = _option(2048, "tokens of a batch, prompts and padding included")
    lr: float = _option(2e-3, "highest learning rate")
    final_lr_share: float = _option(0.05, "learning rate at the end, as a share of the highest")
    warmup_steps: int = _option(50, "steps of linear warm-up")
    weight_decay: float = _option(0.05, "AdamW's, on matrices only")
    beta2: float = _option(0.98, "AdamW's second moment")
    max_grad_norm: float = _option(1.0, "gradients are clipped to this norm")
    dropout: float = _option(0.15, "on contexts, embeddings, blocks and features")
    hidden_noise: float = _option(0.0, "normal noise on hidden states, as a share of their rms")
    hard_share: float = _option(0.0, "share of the label on the data's own token; 1 = plain CE")
    head_decay: float = _option(1.0, "weight of head k is this to the power k")

    validation_share: float = _option(0.04, "share of prompts held out")
    max_validation_rows: int = _option(96, "held-out rows judged at each validation")
    validate_every: int = _option(150, "steps between validations")
    checkpoint_every: int = _option(50, "steps between checkpoints")
    patience: int = _option(0, "stop after so many validations without a rise; 0 = never")
    judge_nodes: int = _option(16, "the best checkpoint is the best with a tree of so many nodes")
    seed: int = _option(0, "order, dropout and starting weights")
    num_threads: int = _option(0, "CPU threads; 0 = PyTorch's choice")
