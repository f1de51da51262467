"""Checkpoints of a training run: everything that the next step depends on, whole or not at all.

Knows: a folder with `last.pt` and `best.pt`, each with what it was made with. Does not know: what
a step does.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from entmtp.data.made_with import MadeWith, is_stale
from entmtp.errors import ArtefactError

SCHEMA_VERSION = 2


class Progress(NamedTuple):
    """Where a run stands."""

    step: int
    """Steps done; the data order follows from it."""
    best: float
    """The highest validation figure so far."""
    num_stale: int
    """Validations since."""


def save_checkpoint(
    path: Path,
    made_with: MadeWith,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    at: Progress,
) -> None:
    """Write a checkpoint; a kill at any moment leaves the old one or the new one."""
    state: dict[str, Any] = {
        "made_with": dict(made_with),
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
    path: Path,
    made_with: MadeWith,
    module: nn.Module,
    optimiser: torch.optim.Optimizer,
    *,
    restart: bool = False,
) -> Progress | None:
    """Take up a checkpoint; None where there is none, or one that is to be made anew.

    Raises:
        ArtefactError: it is broken, or of other data or settings and not to be made anew.
    """
    if not path.exists():
        return None
    state = _read(path)
    if is_stale(path, state["made_with"], made_with, restart=restart):
        return None
    module.load_state_dict(state["module"])
    optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["rng"])
    device = next(module.parameters()).device
    if device.type == "cuda" and "cuda_rng" in state:
        torch.cuda.set_rng_state(state["cuda_rng"], device)
    step, best, num_stale = state["progress"]
    return Progress(step, best, num_stale)


def save_weights(path: Path, made_with: MadeWith, module: nn.Module) -> None:
    _write(path, {"made_with": dict(made_with), "module": module.state_dict()})


def load_weights(path: Path, made_with: MadeWith, module: nn.Module) -> None:
    """Take up weights.

    Raises:
        ArtefactError: they are broken, or of other data or settings.
    """
    state = _read(path)
    is_stale(path, state["made_with"], made_with, restart=False)
    module.load_state_dict(state["module"])


def _write(path: Path, state: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # One name for every process: what a kill leaves is written over, not heaped up.
    half = path.with_name(f".{path.name}")
    try:
        torch.save({"schema_version": SCHEMA_VERSION, **state}, half)
    except RuntimeError as error:  # what torch makes of a full disk
        half.unlink(missing_ok=True)
        raise ArtefactError(
            f"cannot write {path} ({error}); free some space and run again, it goes on from the"
            " checkpoint before"
        ) from error
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
