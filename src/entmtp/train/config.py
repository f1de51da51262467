"""How heads are trained: the only source of defaults.

Knows: names, types, defaults, ranges and a line of help for each. The command's flags are made
from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from entmtp.errors import BadInput
from entmtp.heads import KINDS
from entmtp.train.arithmetic import AUTO, DTYPES

Range = tuple[Callable[[Any], bool], str]
"""Whether a value is right, and what is expected of it in words."""


CHOICES = {
    "kind": tuple(KINDS),
    "output": ("target", "own", "projected"),
    "prefix_start": ("target", "random"),
    "arithmetic": (AUTO, *DTYPES),
}
_COUNT: Range = (lambda value: value >= 1, "1 or more")
_COUNT_OR_NONE: Range = (lambda value: value >= 0, "0 or more")
_POSITIVE: Range = (lambda value: 0 < value < math.inf, "a number above 0")
_SHARE: Range = (lambda value: 0 <= value <= 1, "a share from 0 to 1")
_SHARE_BELOW_ONE: Range = (lambda value: 0 <= value < 1, "a share from 0 to below 1")
RANGES: dict[str, Range] = {
    "num_draft_heads": _COUNT,
    "num_layers": _COUNT,
    "draft_vocab_size": _COUNT_OR_NONE,
    "epochs": (lambda value: 0 <= value < math.inf, "a number of 0 or more"),
    "batch_tokens": _COUNT,
    "lr": _POSITIVE,
    "final_lr_share": _SHARE,
    "warmup_steps": _COUNT_OR_NONE,
    "weight_decay": (lambda value: 0 <= value < math.inf, "a number of 0 or more"),
    "beta2": _SHARE_BELOW_ONE,
    "max_grad_norm": _POSITIVE,
    "dropout": _SHARE_BELOW_ONE,
    "hidden_noise": (lambda value: 0 <= value < math.inf, "a number of 0 or more"),
    "hard_share": _SHARE,
    "head_decay": _POSITIVE,
    "validation_share": _SHARE_BELOW_ONE,
    "max_validation_rows": _COUNT,
    "validate_every": _COUNT,
    "checkpoint_every": _COUNT,
    "patience": _COUNT_OR_NONE,
    "judge_nodes": (lambda value: value >= 2, "2 or more, the root being one of them"),
    "num_threads": _COUNT_OR_NONE,
}


def _option(default: Any, help_text: str) -> Any:
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class TrainConfig:
    """Every choice of a training run; a run is repeatable from it and the rows."""

    kind: str = _option("hydra++", "medusa, hydra or hydra++")
    num_draft_heads: int = _option(4, "heads, that is, the deepest draft")
    num_layers: int = _option(3, "residual blocks of each head")
    start_from: str = _option("", "heads to begin with, of the same sizes; empty: new weights")
    draft_vocab_size: int = _option(8192, "output rows, the most frequent ids; 0 = all ids")
    output: str = _option(
        "target",
        "target: the model's own output rows, frozen; own: trained; projected (medusa): the"
        " model's rows behind a trained matrix of each head",
    )
    prefix_start: str = _option(
        "target", "hydra++ layer starts from: target (its last layer), random"
    )

    epochs: float = _option(3.0, "passes over the training rows; 0 saves the starting weights")
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
    arithmetic: str = _option(
        AUTO, "of products: float32, bfloat16 (on units for it several times as fast), auto"
    )
    num_threads: int = _option(0, "CPU threads; 0 = PyTorch's choice")

    def __post_init__(self) -> None:
        """Raises BadInput: a value is none that a run could use."""
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise self._refused(name, f"one of {', '.join(known)}")
        for name, (is_right, expected) in RANGES.items():
            if not is_right(getattr(self, name)):
                raise self._refused(name, expected)

    def _refused(self, name: str, expected: str) -> BadInput:
        flag = f"--{name.replace('_', '-')}"
        return BadInput(f"{flag} is {getattr(self, name)}; expected {expected}")
