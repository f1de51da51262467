"""Where figures were made: versions, machine, load. Knows: the machine it runs on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from entmtp.target.machine import machine_name
from entmtp.target.model import TargetModel

PACKAGES = ("entmtp", "torch", "transformers")


def describe_environment(target: TargetModel) -> dict[str, Any]:
    """What a reader needs to judge or repeat a measurement, as JSON values."""
    device = target.device
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "platform": platform.platform(),
        "processor": machine_name(device),
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "device": str(device),
        "dtype": target.number_format,
        "runtime": target.runtime,
        "model": target.name,
        "model_fingerprint": target.fingerprint,
    }


def load_average() -> float | None:
    """Processes that wanted a CPU over the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _version(package: str) -> str | None:
    """None where a source tree is run without being installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
