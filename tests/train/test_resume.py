"""A run that is killed and started again ends with the same weights (case T08)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from entmtp.errors import ArtefactError
from entmtp.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import split_rows
from entmtp.train.features import FeatureConfig, extract_features
from entmtp.train.metrics import read_metrics
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
KILLED_RUN = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from test_resume import make_trainer
def kill(report):
    if report.step == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
make_trainer(Path(sys.argv[1])).run(kill)
"""


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


def test_T08_a_killed_run_ends_with_the_same_weights(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        rows = ring_rows(12, 24)
        extract_features(ring(12), rows, tmp_path / name / "features", FeatureConfig())
    reports, weights = run_to_the_end(make_trainer(tmp_path / "whole"))
    num_steps = reports[-1].step
    assert num_steps == reports[-1].num_steps == 40
    for step in (17, 38):
        command = [sys.executable, "-c", KILLED_RUN, str(tmp_path / "killed"), str(step)]
        paths = {"PYTHONPATH": ":".join([*sys.path, str(Path(__file__).parent)])}
        done = subprocess.run(command, env=paths, capture_output=True, check=False)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]
    resumed, weights_again = run_to_the_end(make_trainer(tmp_path / "killed"))
    assert resumed[0].step == 36  # the checkpoint at 35 was the last before the kill at 38
    for name, value in weights.items():
        assert torch.equal(weights_again[name], value), name
    metrics = [read_metrics(tmp_path / name / "run/metrics.jsonl") for name in ("whole", "killed")]
    assert metrics[0] == metrics[1]
    best = [torch.load(tmp_path / name / "run/best.pt")["module"] for name in ("whole", "killed")]
    assert all(torch.equal(best[0][name], best[1][name]) for name in best[0])


def test_T08_a_finished_run_does_nothing_more(tmp_path: Path) -> None:
    extract_features(ring(12), ring_rows(12, 24), tmp_path / "features", FeatureConfig())
    _, weights = run_to_the_end(make_trainer(tmp_path))
    again, same = run_to_the_end(make_trainer(tmp_path))
    assert again == []
    assert all(torch.equal(weights[name], same[name]) for name in weights)


def test_T08_other_data_or_settings_are_said(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimiser = make_optimiser(module, CONFIG)
    save_checkpoint(tmp_path / "last.pt", "run-a", module, optimiser, Progress(3, 1.5, 0))
    restored = load_checkpoint(tmp_path / "last.pt", "run-a", module, optimiser)
    assert restored == Progress(3, 1.5, 0)
    with pytest.raises(ArtefactError, match="other data or settings"):
        load_checkpoint(tmp_path / "last.pt", "run-b", module, optimiser)


def test_T08_half_a_checkpoint_is_never_picked_up(tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    optimiser = make_optimiser(module, CONFIG)
    path = tmp_path / "last.pt"
    assert load_checkpoint(path, "run", module, optimiser) is None
    save_checkpoint(path, "run", module, optimiser, Progress(3, 1.5, 0))
    # What a kill during a save leaves: a part under another name, and the old file whole.
    (tmp_path / ".last.pt.123").write_bytes(path.read_bytes()[:50])
    assert load_checkpoint(path, "run", module, optimiser) == Progress(3, 1.5, 0)
    state = torch.load(path, weights_only=True)
    torch.save({**state, "schema_version": 2}, path)
    with pytest.raises(ArtefactError, match="has schema version 2, this program reads 1"):
        load_checkpoint(path, "run", module, optimiser)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ArtefactError, match="is broken"):
        load_checkpoint(path, "run", module, optimiser)
