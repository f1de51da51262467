"""From answers to a folder of heads: features, split, training, saving, each resumable.

Knows: the order of the stages and the folders between them. Does not know: how answers are
made, the command, progress bars.

The work folder: `features/` (shards), `run-<kind>/` (checkpoints, metrics, picture).
"""

from __future__ import annotations

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from entmtp.data import OnBadLine, refuse_line
from entmtp.errors import ArtefactError, BadInput
from entmtp.heads import (
    DraftHeads,
    StaticTree,
    coverage,
    describe_heads,
    load_heads,
    locate_heads,
    save_heads,
    write_static_trees,
)
from entmtp.heads.format import CONFIG_NAME, WEIGHTS_NAME
from entmtp.target.model import TargetModel
from entmtp.train.card import write_card
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import Split, pack, split_rows
from entmtp.train.features import (
    FeatureConfig,
    extract_features,
    made_with,
    max_row_length,
)
from entmtp.train.judge import static_trees, trace_rows
from entmtp.train.model import LabelMap, bind_in_float, new_heads
from entmtp.train.rows import read_rows
from entmtp.train.shards import (
    FeatureReader,
    RowRef,
    discard_stale,
    list_rows,
    shard_made_with,
    teacher_mass,
)
from entmtp.train.survey import Survey, survey
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


class Places(NamedTuple):
    """Where a run keeps its work and leaves its heads."""

    work: Path
    out: Path
    restart: bool = False
    """Work of other data or settings is made anew instead of refused."""


@dataclass(frozen=True)
class TrainedHeads:
    """What a run left behind."""

    path: Path
    result: TrainResult
    provenance: dict[str, Any]


def survey_answers(
    target: TargetModel, answers: Sequence[Path], on_bad: OnBadLine = refuse_line
) -> Survey:
    """Read answers files to the end, and count what of them can be trained on.

    Raises:
        BadInput: a file cannot be read, a line is bad, or there is nothing to train on.
    """
    longest = max_row_length(target, FeatureConfig())
    found = survey(read_rows(answers, target, on_bad), longest)
    found.check()
    return found


def prepare_features(
    target: TargetModel,
    answers: Sequence[Path],
    folder: Path,
    progress: Callable[[int], None] | None = None,
    *,
    on_bad: OnBadLine = refuse_line,
    restart: bool = False,
) -> list[RowRef]:
    """Bring the features of answers files into `folder`; the rows of these files.

    Raises:
        ArtefactError: the folder holds features of another model or of other settings, and they
            may not be made anew.
    """
    config = FeatureConfig()
    made_by = (target.fingerprint, made_with(target, config))
    if restart:
        discard_stale(folder, *made_by)
    rows = read_rows(answers, target, on_bad)
    wanted = extract_features(target, rows, folder, config, progress)
    there = list_rows(folder, *made_by)
    refs = [ref for ref in there if ref.key in wanted]
    if num_other := len(there) - len(refs):
        warnings.warn(
            f"{num_other} rows of {folder} are of other answers and are left out", stacklevel=2
        )
    return refs


def train_from_features(
    target: TargetModel,
    refs: Sequence[RowRef],
    places: Places,
    config: TrainConfig,
    progress: Callable[[StepReport], None] | None = None,
) -> TrainedHeads:
    """Train heads on rows of features and save them.

    Raises:
        BadInput: no row can be trained on.
        ArtefactError: the work folder holds a run with other data or settings.
    """
    split = _split(refs, config)
    mass = teacher_mass(split.train, target.vocab_size, PROMPT_WEIGHT)
    heads = new_heads(target, config, mass, _sample_states(split.train))
    run = places.work / f"run-{config.kind}"
    trainer = Trainer(heads, split, config, run, _origin(target, refs, config))
    result = trainer.run(progress, restart=places.restart)
    provenance = _provenance(target, heads, split, config, result)
    (places.out / CONFIG_NAME).unlink(missing_ok=True)  # a kill leaves no heads, not mixed ones
    save_heads(heads, places.out, target, provenance)
    # As users will load them: rounded.
    saved = bind_in_float(load_heads(places.out, target), target)
    trees = _store_trees(saved, split, places.out, config)
    write_card(places.out, target.name, saved.config, provenance, trees)
    return TrainedHeads(places.out, result, provenance)


def _origin(
    target: TargetModel, refs: Sequence[RowRef], config: TrainConfig
) -> dict[str, str | list[str]]:
    """What rows and starting weights come from."""
    shards = sorted({ref.shard for ref in refs})
    origin: dict[str, str | list[str]] = {
        "model": target.fingerprint,
        "features": sorted({shard_made_with(path) for path in shards}),
    }
    if config.start_from:
        weights = (locate_heads(config.start_from) / WEIGHTS_NAME).read_bytes()
        origin["starting_weights"] = hashlib.sha256(weights).hexdigest()[:16]
    return origin


def _provenance(
    target: TargetModel, heads: DraftHeads, split: Split, config: TrainConfig, result: TrainResult
) -> dict[str, Any]:
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
    if config.start_from and (begun_with := _seen_by(config.start_from)):
        provenance["begun_with"] = begun_with
    if heads.draft_ids is not None:
        held_out = teacher_mass(split.validation or split.train, target.vocab_size)
        provenance["draft_vocabulary_coverage"] = coverage(held_out, heads.draft_ids.cpu())
    return provenance


def _seen_by(spec: str) -> dict[str, int]:
    """Answers and tokens of heads' training and of all before it; none where they do not say."""
    provenance = describe_heads(locate_heads(spec)).provenance
    before = provenance.get("begun_with")
    said = [provenance, before if isinstance(before, dict) else {}]
    names = ("num_train_rows", "num_train_tokens")
    counts = [[one.get(name, 0) for one in said] for name in names]
    if not all(type(count) is int for some in counts for count in some):
        return {}
    seen = dict(zip(names, map(sum, counts), strict=True))
    return seen if any(seen.values()) else {}


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
    split = _split(list_rows(features, target.fingerprint), settings)
    heads = bind_in_float(load_heads(folder, target), target)
    trees = _store_trees(heads, split, folder, settings)
    try:
        write_card(folder, base.get("name", target.name), config, provenance, trees)
    except (LookupError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise ArtefactError(
            f"heads in {folder} do not say how they were trained ({error!r}), so their card stays"
            " as it is; the trees are written"
        ) from error
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


def _split(refs: Sequence[RowRef], config: TrainConfig) -> Split:
    """Rows to learn from and to judge by; what is thin about them is said."""
    split = split_rows(refs, config.validation_share)
    if not split.train:
        split = Split(split.validation, [])
    num_rows = len(split.train) + len(split.validation)
    if not any(ref.num_answer >= 2 for ref in split.train):
        num_tokens = sum(ref.length for ref in split.train)
        raise BadInput(
            f"0 of {num_tokens} tokens are trained: no row of {num_rows} has two assistant tokens"
            " or more; check the prompts and answers"
        )
    num_prompts = len({ref.prompt_key for ref in (*split.train, *split.validation)})
    if num_prompts < FEW_ROWS:
        warnings.warn(
            f"only {num_rows} rows with {num_prompts} different prompts to train on; heads from"
            f" fewer than {FEW_ROWS} know little else, expect few accepted drafts",
            stacklevel=3,
        )
    if not split.validation:
        warnings.warn(
            "no row is held out; all figures are of the rows trained on, and too good",
            stacklevel=3,
        )
    longest = max(ref.num_answer for ref in split.train)
    if longest <= config.num_draft_heads:
        warnings.warn(
            f"the longest answer has {longest} tokens: of {config.num_draft_heads} heads only"
            f" {longest - 1} have something to learn",
            stacklevel=3,
        )
    return split


def _by_kind(refs: Sequence[RowRef]) -> dict[str, int]:
    kinds = sorted({ref.kind for ref in refs})
    return {kind or "unnamed": sum(ref.kind == kind for ref in refs) for kind in kinds}


def _sample_states(refs: Sequence[RowRef]) -> torch.Tensor:
    reader = FeatureReader()
    return torch.cat([reader.read(ref).hidden[:-1] for ref in refs[:SAMPLE_ROWS]])
