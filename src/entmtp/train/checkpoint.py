"""Checkpoints of a training run: everything that the next step depends on, whole or not at all.

Knows: a folder with `last.pt` and `best.pt`. Does not know: what a step does.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from entmtp.errors import ArtefactError

SCHEMA_VERSION = 1


class Progress(NamedTuple):
    """Where a run stands."""

    step: int
    """Steps done; the data order follows from it."""
    best: float
    """The highest validation figure so far."""
    num_stale: int
    """Validations since."""


def save_checkpoint(
    path: Path, run_key: str, module: nn.Module, optimiser: torch.optim.Optimizer, at: Progress
) -> None:
    """Write a checkpoint; a kill at any moment leaves the old one or the new one."""
    state: dict[str, Any] = {
        "run_key": run_key,
        "module": module.state_dict(),
        "optimiser": optimiser.state_dict(),
        "rng": torch.get_rng_state(),
        "progress": tuple(at),
    }
    device = next(module.parameters()).device
    if device.type == "cuda":
        state["cuda_rng"] = torch.cuda.get_rng_state(device)
    _write(path, state)


def load_checkpoint(
    path: Path, run_key: str, module: nn.Module, optimiser: torch.optim.Optimizer
) -> Progress | None:
    """Take up a checkpoint; None where there is none.

    Raises:
        ArtefactError: it is broken, or of other data or settings.
    """
    if not path.exists():
        return None
    state = _read(path)
    if state.get("run_key") != run_key:
        raise ArtefactError(
            f"{path} belongs to a run with other data or settings; go on with those, or use"
            " another work folder, or delete it to start anew"
        )
    module.load_state_dict(state["module"])
    optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["rng"])
    device = next(module.parameters()).device
    if device.type == "cuda" and "cuda_rng" in state:
        torch.cuda.set_rng_state(state["cuda_rng"], device)
    step, best, num_stale = state["progress"]
    return Progress(step, best, num_stale)


def save_weights(path: Path, module: nn.Module) -> None:
    _write(path, {"module": module.state_dict()})


def load_weights(path: Path, module: nn.Module) -> None:
    module.load_state_dict(_read(path)["module"])


def _write(path: Path, state: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save({"schema_version": SCHEMA_VERSION, **state}, half)
    half.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise ArtefactError(f"{path} is broken ({error}); delete it to start anew") from error
    found = state.get("schema_version")
    if found != SCHEMA_VERSION:
        raise ArtefactError(
            f"{path} has schema version {found}, this program reads {SCHEMA_VERSION}; go on with a"
            " matching release, or delete it to start anew"
        )
    return state
