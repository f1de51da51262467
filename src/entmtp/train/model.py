"""What training needs of the heads: new ones with good starting weights, and their losses.

Knows: heads, batches, losses, ranks of the true tokens. Does not know: optimiser, files.

Dimension key: B batch · S padded row length · H hidden size · N positions of one head ·
A answer tokens of a row · K draft heads · W draft vocabulary · V vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from entmtp.errors import BadInput
from entmtp.heads import (
    DraftHeads,
    HeadsConfig,
    build_heads,
    choose_draft_ids,
    inverse_map,
    load_heads,
    prefix_shape,
    start_from_target,
)
from entmtp.heads.hydra import FirstBlock, HydraHeads
from entmtp.heads.medusa import MedusaHeads
from entmtp.target.model import TargetModel
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import Batch, supervised
from entmtp.train.losses import CHUNK, cross_entropy, mix_labels
from entmtp.trees.replay import MISS, Ranks

START_SCALE = 0.3
"""Fresh heads repeat the target's guess of the token before theirs, and are sure of it. With
their features scaled down they are less sure. Measured on SmolLM2-135M, mean loss of head 1 over
the first 20 steps: 5.9 nats with this, 10.5 without."""


def new_heads(
    target: TargetModel,
    config: TrainConfig,
    mass: torch.Tensor,  # [V] how often the target writes each id
    sample: torch.Tensor,  # [N, H] some hidden states
) -> DraftHeads:
    """Heads in float32 that start out near the target's own distribution."""
    size = config.draft_vocab_size or target.vocab_size
    if size > target.vocab_size:
        raise BadInput(
            f"--draft-vocab-size {size} is more than the model's {target.vocab_size} tokens;"
            " pass less, or 0 for all"
        )
    torch.manual_seed(config.seed)
    heads = build_heads(
        HeadsConfig(
            kind=config.kind,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            num_draft_heads=config.num_draft_heads,
            num_layers=config.num_layers,
            draft_vocab_size=size,
            output=config.output,
            prefix=prefix_shape(target) if config.kind == "hydra++" else None,
        )
    ).float()
    if heads.draft_ids is not None:
        heads.draft_ids.copy_(choose_draft_ids(mass, size))
    start_from_target(heads, target)
    if isinstance(heads, MedusaHeads) and heads.projection is not None:
        with torch.no_grad():
            heads.projection.mul_(START_SCALE)
    if isinstance(heads, HydraHeads):
        for block in heads.first:
            cast(FirstBlock, block).scale_skip(START_SCALE)
        if heads.prefix is not None:
            heads.prefix.start(target, sample.float(), config.prefix_start)
    if config.start_from:
        _start_from(heads, target, config.start_from)
    heads.dropout.p = config.dropout
    return bind_in_float(heads, target)


def _start_from(heads: DraftHeads, target: TargetModel, spec: str) -> None:
    """Take the weights and the draft vocabulary of heads trained before."""
    given = load_heads(spec, target)
    ours, theirs = asdict(heads.config), asdict(given.config)
    if ours != theirs:
        words = ", ".join(
            f"{name} {theirs[name]}, not {ours[name]}"
            for name in ours
            if ours[name] != theirs[name]
        )
        raise BadInput(
            f"--start-from {spec}: those heads have other sizes ({words}); pass the settings that"
            " they were trained with"
        )
    heads.load_state_dict(given.state_dict())


def bind_in_float(heads: DraftHeads, target: TargetModel) -> DraftHeads:
    """Bind to the target and bring its rows to float32 (CPUs multiply that fastest)."""
    heads.bind(target)
    heads.packed_rows = None  # of the target's numbers, if heads that were loaded have any
    return heads.to(device=target.device, dtype=torch.float32)


class LabelMap:
    """The draft vocabulary as seen from the target's ids."""

    def __init__(self, heads: DraftHeads) -> None:
        ids = None if heads.draft_ids is None else heads.draft_ids.cpu()
        self._rows = inverse_map(ids, heads.vocab_size).to(heads.device)

    def rows(self, target_ids: torch.Tensor) -> torch.Tensor:
        """Output rows of target ids; -1 outside the draft vocabulary."""
        return self._rows[target_ids]


def head_inputs(
    heads: DraftHeads, batch: Batch, noise: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Contexts and token embeddings of all places, flat `[B·S, H]`."""
    hidden = batch.hidden
    if noise and heads.training:
        scale = noise * hidden.square().mean(-1, keepdim=True).sqrt()
        hidden = hidden + scale * torch.randn_like(hidden)
    context = heads.dropout(heads.context(hidden)).flatten(0, 1)
    embeddings = None
    if heads.needs_path:
        embeddings = heads.dropout(heads.embed(batch.ids)).flatten(0, 1)
    return context, embeddings


def head_features(
    heads: DraftHeads,
    head: int,
    inputs: tuple[torch.Tensor, torch.Tensor | None],
    places: torch.Tensor,  # [N]
) -> torch.Tensor:
    """One head's features `[N, H]` at flat places, given the true tokens behind them."""
    context, embeddings = inputs
    path = None
    if embeddings is not None:
        following = places[:, None] + torch.arange(1, head + 2, device=places.device)
        path = embeddings.index_select(0, following.flatten())
        path = path.view(len(places), (head + 1) * path.shape[-1])
    return heads.features(head, context.index_select(0, places), path)


def batch_loss(
    heads: DraftHeads, batch: Batch, labels: LabelMap, config: TrainConfig
) -> tuple[torch.Tensor, list[float | None], int]:
    """The weighted loss, each head's mean cross-entropy in nats, and the positions of head 0.

    A head without a label in the batch has no mean.
    """
    inputs = head_inputs(heads, batch, config.hidden_noise)
    flat_ids = batch.ids.flatten()
    teacher_ids = batch.teacher_ids.flatten(0, 1)
    teacher_probs = batch.teacher_probs.flatten(0, 1)
    total = inputs[0].new_zeros(())
    means: list[float | None] = []
    num_positions = 0
    for head in range(heads.num_draft_heads):
        where = supervised(batch.has_label, head)
        count = len(where.context)
        num_positions = max(num_positions, count)
        if count == 0:
            means.append(None)
            continue
        features = head_features(heads, head, inputs, where.context)
        ids, probs = mix_labels(
            teacher_ids[where.teacher],
            teacher_probs[where.teacher],
            flat_ids[where.teacher + 1],
            config.hard_share,
        )
        loss = cross_entropy(features, *heads.output(head), labels.rows(ids), probs) / count
        total = total + config.head_decay**head * loss
        means.append(loss.item())
    return total, means, num_positions


@torch.inference_mode()
def batch_ranks(heads: DraftHeads, batch: Batch, labels: LabelMap) -> list[Ranks]:
    """A rank trace `[A, K]` of every answer: the true tokens' ranks, given the true path."""
    inputs = head_inputs(heads, batch)
    flat_ids = batch.ids.flatten()
    rows, length = batch.ids.shape
    shape = (rows * length, heads.num_draft_heads)
    ranks = torch.full(shape, MISS, dtype=torch.long, device=batch.ids.device)
    for head in range(heads.num_draft_heads):
        where = supervised(batch.has_label, head)
        chunks = zip(where.context.split(CHUNK), where.teacher.split(CHUNK), strict=True)
        for places, teachers in chunks:
            true = labels.rows(flat_ids[teachers + 1])
            logits = heads.logits(head, head_features(heads, head, inputs, places))
            score = logits.gather(1, true.clamp_min(0)[:, None])
            rank = (logits > score).sum(1)
            ranks[places, head] = torch.where(true >= 0, rank, MISS)
    traces = ranks.view(rows, length, -1).cpu().numpy().astype(np.int64)
    has_label = batch.has_label.cpu().numpy()
    return [
        _ending(traces[row, first:end])
        for row in range(rows)
        for first, end in answer_runs(has_label[row])
    ]


def answer_runs(
    has_label: NDArray[np.bool_],  # [S]
) -> list[tuple[int, int]]:
    """Where each run of labelled places begins and ends: the starts inside one answer."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], has_label, [False]])))
    return [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]


def _ending(trace: Ranks) -> Ranks:
    """The trace of one answer: no head reaches from it into the next turn's."""
    ending = trace.copy()
    for head in range(trace.shape[1]):
        ending[max(0, len(trace) - head - 1) :, head] = MISS
    return ending
