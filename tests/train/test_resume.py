"""What a run takes up again, and what it does not (case T08; runs that are killed stand in
`tests/cases/test_training.py`).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from entmtp.errors import ArtefactError
from entmtp.train.checkpoint import (
    Progress,
    load_checkpoint,
    load_weights,
    save_checkpoint,
    save_weights,
)
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import split_rows
from entmtp.train.features import FeatureConfig, extract_features
from entmtp.train.model import new_heads
from entmtp.train.schedule import make_optimiser
from entmtp.train.shards import list_rows, teacher_mass
from entmtp.train.trainer import StepReport, Trainer
from fixtures import ring
from training_rows import ring_rows

CONFIG = TrainConfig(
    kind="hydra++",
    num_draft_heads=2,
    num_layers=2,
    draft_vocab_size=10,
    epochs=10,
    batch_tokens=120,
    warmup_steps=5,
    validation_share=0.2,
    validate_every=15,
    checkpoint_every=7,
    hidden_noise=0.1,
    prefix_start="random",  # RING leaves the weights of its own layer to chance
)


def make_trainer(folder: Path) -> Trainer:
    target = ring(12)
    split = split_rows(list_rows(folder / "features"), CONFIG.validation_share)
    sample = torch.eye(12)
    heads = new_heads(target, CONFIG, teacher_mass(split.train, 12), sample)
    return Trainer(heads, split, CONFIG, folder / "run")


def run_to_the_end(trainer: Trainer) -> tuple[list[StepReport], dict[str, torch.Tensor]]:
    reports: list[StepReport] = []
    trainer.run(reports.append)
    last = torch.load(trainer.folder / "last.pt", weights_only=True)
    return reports, last["module"]


def test_T08_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    extract_features(ring(12), ring_rows(12, 24), tmp_path / "features", FeatureConfig())
    reports, weights = run_to_the_end(make_trainer(tmp_path))
    assert reports[-1].step == reports[-1].num_steps == 40
    again, same = run_to_the_end(make_trainer(tmp_path))
    assert again == []
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_T08_other_data_or_settings_are_said(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimiser = make_optimiser(module, CONFIG)
    path = tmp_path / "last.pt"
    made_with = {"lr": 0.1, "rows": "a"}
    save_checkpoint(path, made_with, module, optimiser, Progress(3, 1.5, 0))
    assert load_checkpoint(path, made_with, module, optimiser) == Progress(3, 1.5, 0)
    other = {"lr": 0.2, "rows": "b", "seed": 1}
    with pytest.raises(ArtefactError, match=r"\(lr 0.1 -> 0.2, rows a -> b, seed None -> 1\)"):
        load_checkpoint(path, other, module, optimiser)
    assert load_checkpoint(path, other, module, optimiser, restart=True) is None
    save_weights(tmp_path / "best.pt", made_with, module)
    with pytest.raises(ArtefactError, match=r"best.pt belongs to a run with other data"):
        load_weights(tmp_path / "best.pt", other, module)


def test_T08_half_a_checkpoint_is_never_picked_up(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimiser = make_optimiser(module, CONFIG)
    path = tmp_path / "last.pt"
    assert load_checkpoint(path, {}, module, optimiser) is None
    save_checkpoint(path, {}, module, optimiser, Progress(3, 1.5, 0))
    # What a kill during a save leaves: a part under another name, and the old file whole.
    (tmp_path / ".last.pt").write_bytes(path.read_bytes()[:50])
    assert load_checkpoint(path, {}, module, optimiser) == Progress(3, 1.5, 0)
    save_checkpoint(path, {}, module, optimiser, Progress(4, 1.5, 0))
    assert [name.name for name in tmp_path.iterdir()] == ["last.pt"], "halves do not heap up"
    state = torch.load(path, weights_only=True)
    torch.save({**state, "schema_version": 1}, path)
    with pytest.raises(ArtefactError, match="has schema version 1, this program reads 2"):
        load_checkpoint(path, {}, module, optimiser)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ArtefactError, match="is broken"):
        load_checkpoint(path, {}, module, optimiser)


def test_T08_the_best_weights_of_another_run_are_never_taken_up(tmp_path: Path) -> None:
    extract_features(ring(12), ring_rows(12, 24), tmp_path / "features", FeatureConfig())
    trainer = make_trainer(tmp_path)
    save_weights(trainer.folder / "best.pt", {"lr": 1}, torch.nn.Linear(2, 2))
    trainer.plan = []  # no run, so no best of its own
    trainer.run()
    assert not (trainer.folder / "best.pt").exists()
