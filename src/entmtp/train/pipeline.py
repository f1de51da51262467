"""From answers to a folder of heads: features, split, training, saving, each resumable.

Knows: the order of the stages and the folders between them. Does not know: how answers are
made, the command, progress bars.

The work folder: `features/` (shards), `run-<kind>/` (checkpoints, metrics, picture).
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from entmtp.errors import ArtefactError, BadInput
from entmtp.heads import (
    DraftHeads,
    StaticTree,
    coverage,
    describe_heads,
    load_heads,
    save_heads,
    write_static_trees,
)
from entmtp.target.model import TargetModel
from entmtp.train.card import write_card
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import Split, pack, split_rows
from entmtp.train.features import FeatureConfig, extract_features
from entmtp.train.judge import static_trees, trace_rows
from entmtp.train.model import LabelMap, bind_in_float, new_heads
from entmtp.train.rows import read_rows
from entmtp.train.shards import FeatureReader, RowRef, list_rows, teacher_mass
from entmtp.train.trainer import StepReport, Trainer, TrainResult

FEW_ROWS = 100
"""Below this, heads are trained with a warning: they will know little but these rows."""
PROMPT_WEIGHT = 0.1
"""A prompt's token beside an answer's, in choosing the draft vocabulary. Measured on SmolLM2-135M:
8,192 ids cover 94.4 % of held-out answers without prompts, 94.7 % with this weight."""
TREE_ROWS = 500
"""Training rows that static trees are picked on, and held-out rows that they are judged by."""
SAMPLE_ROWS = 20
"""Rows whose hidden states set the starting scale of a prefix layer."""


@dataclass(frozen=True)
class TrainedHeads:
    """What a run left behind."""

    path: Path
    result: TrainResult
    provenance: dict[str, Any]


def prepare_features(
    target: TargetModel,
    answers: Sequence[Path],
    folder: Path,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Features of answers files into `folder`; how many rows are new."""
    rows = read_rows(answers, target.fingerprint)
    return extract_features(target, rows, folder, FeatureConfig(), progress)


def train_from_features(
    target: TargetModel,
    features: Path,
    work: Path,
    out: Path,
    config: TrainConfig,
    progress: Callable[[StepReport], None] | None = None,
) -> TrainedHeads:
    """Train heads on the shards of a folder and save them to `out`.

    Raises:
        BadInput: no row can be trained on.
    """
    split = split_rows(list_rows(features, target.fingerprint), config.validation_share)
    _check_rows(split)
    mass = teacher_mass(split.train, target.vocab_size, PROMPT_WEIGHT)
    heads = new_heads(target, config, mass, _sample_states(split.train))
    run = work / f"run-{config.kind}"
    result = Trainer(heads, split, config, run).run(progress)
    provenance = {
        "recipe": dataclasses.asdict(config),
        "num_train_rows": len(split.train),
        "num_train_tokens": sum(ref.num_answer for ref in split.train),
        "num_train_rows_by_kind": _by_kind(split.train),
        "num_validation_rows": len(split.validation),
        "num_steps": result.num_steps,
        "validation": result.validation,
        "torch": torch.__version__,
    }
    if heads.draft_ids is not None:
        held_out = teacher_mass(split.validation or split.train, target.vocab_size)
        provenance["draft_vocabulary_coverage"] = coverage(held_out, heads.draft_ids.cpu())
    save_heads(heads, out, target, provenance)
    trees = _store_trees(heads, split, out, config)
    write_card(out, target.name, heads.config, provenance, trees)
    return TrainedHeads(out, result, provenance)


def rewrite_trees(target: TargetModel, features: Path, folder: Path) -> list[StaticTree]:
    """Find the static trees of existing heads anew; write them and the card beside the heads.

    Rows are split as in training: the heads' provenance says how.

    Raises:
        BadInput: there are no rows to find trees on.
        HeadsError, ArtefactError: the heads do not fit, or do not say how they were trained.
    """
    config, base, provenance = describe_heads(folder)
    recipe = provenance.get("recipe")
    share = recipe.get("validation_share") if isinstance(recipe, dict) else None
    if not isinstance(share, int | float) or "validation" not in provenance:
        raise ArtefactError(
            f"heads in {folder} do not say how they were trained; --trees-only needs heads that"
            " train-heads wrote"
        )
    settings = TrainConfig(validation_share=share)
    split = split_rows(list_rows(features, target.fingerprint), settings.validation_share)
    _check_rows(split)
    heads = bind_in_float(load_heads(folder, target), target)
    trees = _store_trees(heads, split, folder, settings)
    write_card(folder, base.get("name", target.name), config, provenance, trees)
    return trees


def _store_trees(
    heads: DraftHeads, split: Split, folder: Path, config: TrainConfig
) -> list[StaticTree]:
    """Trees for greedy decoding, where there are greedy answers to pick and judge them on."""
    heads.eval()
    reader, labels = FeatureReader(), LabelMap(heads)
    seen, held_out = (
        trace_rows(heads, pack(_greedy(refs)[:TREE_ROWS], config.batch_tokens), reader, labels)
        for refs in (split.train, split.validation or split.train)
    )
    trees = static_trees(seen, held_out)
    write_static_trees(folder, trees)
    return trees


def _greedy(refs: Sequence[RowRef]) -> Sequence[RowRef]:
    return [ref for ref in refs if ref.temperature == 0] or refs


def _check_rows(split: Split) -> None:
    total = len(split.train) + len(split.validation)
    trained = sum(max(0, ref.num_answer - 1) for ref in split.train)
    tokens = sum(ref.length for ref in split.train)
    if trained == 0:
        raise BadInput(
            f"0 of {tokens} tokens are trained: no row of {total} has two assistant tokens or"
            " more; check the prompts and answers"
        )
    if total < FEW_ROWS:
        warnings.warn(
            f"only {total} rows to train on; heads from fewer than {FEW_ROWS} rows know little"
            " else, expect few accepted drafts",
            stacklevel=3,
        )


def _by_kind(refs: Sequence[RowRef]) -> dict[str, int]:
    kinds = sorted({ref.kind for ref in refs})
    return {kind or "unnamed": sum(ref.kind == kind for ref in refs) for kind in kinds}


def _sample_states(refs: Sequence[RowRef]) -> torch.Tensor:
    reader = FeatureReader()
    return torch.cat([reader.read(ref).hidden[:-1] for ref in refs[:SAMPLE_ROWS]])
