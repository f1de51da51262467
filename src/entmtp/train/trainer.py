"""The training loop: batches in, checkpoints and metrics out.

Knows: heads, a split of rows, one configuration. Does not know: where rows came from, the
command, pictures.

A run is a function of its rows and its configuration: killed at any moment and started again,
it ends with the same weights (on the CPU of the same machine, with as many threads; CUDA adds up
gradients in an order of its own).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from entmtp.data.made_with import MadeWith
from entmtp.errors import BadInput, EntmtpError
from entmtp.heads import DraftHeads
from entmtp.train.arithmetic import multiplying_in, resolve
from entmtp.train.checkpoint import (
    Progress,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
)
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import Split, load_batch, plan_epoch
from entmtp.train.judge import JudgingRows, judge, judging_rows
from entmtp.train.metrics import MetricsLog
from entmtp.train.model import LabelMap, batch_loss
from entmtp.train.schedule import learning_rate, make_optimiser
from entmtp.train.shards import FeatureReader, RowRef


class StepReport(NamedTuple):
    """What the progress display shows of a step."""

    step: int
    num_steps: int
    loss: float
    positions_per_second: float
    best: float


@dataclass(frozen=True)
class TrainResult:
    """How a run ended."""

    num_steps: int
    best: float
    """Highest mean acceptance length on held-out rows with the judging tree."""
    validation: dict[str, Any]
    """The last judgement, of the best weights."""


class Trainer:
    """One run in one folder (`last.pt`, `best.pt`, `metrics.jsonl`)."""

    def __init__(
        self,
        heads: DraftHeads,
        split: Split,
        config: TrainConfig,
        folder: Path,
        origin: MadeWith = MappingProxyType({}),
    ) -> None:
        """`origin` names what the rows and the starting weights come from."""
        self.heads = heads
        self.config = config
        self.folder = folder
        self.labels = LabelMap(heads)
        self.reader = FeatureReader()
        self.optimiser = make_optimiser(heads, config)
        self.plan = _plan(split.train, config)
        self.judging = judging_rows(split, config)
        self.arithmetic = resolve(config.arithmetic, heads.device)
        self.made_with = {
            **origin,
            **_made_with(self.plan, self.judging, heads, config),
            "arithmetic": self.arithmetic,
        }
        self.log = MetricsLog(folder / "metrics.jsonl")

    def run(
        self,
        progress: Callable[[StepReport], None] | None = None,
        *,
        restart: bool = False,
    ) -> TrainResult:
        """Train to the end, from the last checkpoint if there is one; leave the best weights.

        Args:
            restart: a checkpoint of other data or settings is left for a new beginning.

        Raises:
            ArtefactError: there is such a checkpoint, and it may not be left.
            EntmtpError: the loss or its gradient is not finite; the message names the step.
        """
        if self.config.num_threads:
            torch.set_num_threads(self.config.num_threads)
        last, best = self.folder / "last.pt", self.folder / "best.pt"
        at = load_checkpoint(last, self.made_with, self.heads, self.optimiser, restart=restart)
        if at is None:
            best.unlink(missing_ok=True)  # first: a kill here leaves what is refused again
            last.unlink(missing_ok=True)
            at = Progress(0, 0.0, 0)
        self.log.truncate(at.step)
        while at.step < len(self.plan) and not self._is_exhausted(at):
            at = self._advance(at, progress)
        if best.exists():
            load_weights(best, self.made_with, self.heads)
        verdict = judge(self.heads, self.judging, self.reader, self.labels, self.config)
        return TrainResult(at.step, at.best, verdict)

    def _is_exhausted(self, at: Progress) -> bool:
        return bool(self.config.patience) and at.num_stale >= self.config.patience

    def _advance(self, at: Progress, progress: Callable[[StepReport], None] | None) -> Progress:
        started = time.perf_counter()
        loss, means, num_positions = self._train_step(at.step)
        at = at._replace(step=at.step + 1)
        rate = num_positions / (time.perf_counter() - started)
        self.log.write(
            {"step": at.step, "loss": loss, "head_losses": means, "positions": num_positions}
        )
        if progress is not None:
            progress(StepReport(at.step, len(self.plan), loss, rate, at.best))
        is_last = at.step == len(self.plan)
        if is_last or at.step % self.config.validate_every == 0:
            at = self._validate(at)
        if is_last or at.step % self.config.checkpoint_every == 0:
            self._save(at)
        return at

    def _train_step(self, step: int) -> tuple[float, list[float | None], int]:
        self.heads.train()
        for group in self.optimiser.param_groups:
            group["lr"] = learning_rate(step, len(self.plan), self.config)
        batch = load_batch(self.reader, self.plan[step], self.heads.device)
        with multiplying_in(self.arithmetic, self.heads.device):
            loss, means, num_positions = batch_loss(self.heads, batch, self.labels, self.config)
        value = loss.item()
        _check_finite("loss", value, step)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.heads.parameters(), self.config.max_grad_norm)
        _check_finite("gradient", norm.item(), step)  # before it spoils the weights
        self.optimiser.step()
        return value, means, num_positions

    def _validate(self, at: Progress) -> Progress:
        verdict = judge(self.heads, self.judging, self.reader, self.labels, self.config)
        self.log.write({"step": at.step, "validation": verdict})
        figure = float(verdict["judged"])
        if figure <= at.best:
            return at._replace(num_stale=at.num_stale + 1)
        save_weights(self.folder / "best.pt", self.made_with, self.heads)
        at = at._replace(best=figure, num_stale=0)
        self._save(at)  # so that a resumed run knows of the best it has on disk
        return at

    def _save(self, at: Progress) -> None:
        save_checkpoint(self.folder / "last.pt", self.made_with, self.heads, self.optimiser, at)


def _check_finite(name: str, value: float, step: int) -> None:
    if not math.isfinite(value):
        raise EntmtpError(
            f"the {name} is {value} at step {step + 1}; lower --lr (or --max-grad-norm) and start"
            " again with --restart"
        )


def _plan(refs: Sequence[RowRef], config: TrainConfig) -> list[list[RowRef]]:
    """All batches of the run, in order; the last epoch may be a part of one."""
    if not refs:
        raise BadInput("0 rows to train on; pass more answers, or lower --validation-share")
    plan: list[list[RowRef]] = []
    for epoch in range(math.ceil(config.epochs)):
        batches = plan_epoch(refs, config.batch_tokens, config.seed, epoch)
        plan += batches[: math.ceil(min(1.0, config.epochs - epoch) * len(batches))]
    return plan


def _made_with(
    plan: list[list[RowRef]], judging: JudgingRows, heads: DraftHeads, config: TrainConfig
) -> dict[str, Any]:
    """The data, their order, the sizes and the settings that change the outcome."""
    settings = asdict(config)
    for name in ("checkpoint_every", "num_threads"):
        settings.pop(name)
    rows = hashlib.sha256()
    for batch in (*plan, *judging.seen, *judging.held_out):
        rows.update("".join(ref.key for ref in batch).encode())
    vocabulary = "all" if heads.draft_ids is None else str(heads.draft_ids.tolist())
    return {
        **settings,
        "num_steps": len(plan),
        "rows": rows.hexdigest()[:16],
        "hidden_size": heads.hidden_size,
        "draft_vocabulary": hashlib.sha256(vocabulary.encode()).hexdigest()[:16],
    }
