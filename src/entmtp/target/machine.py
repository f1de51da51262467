"""What computes, by name: times measured on one are not those of another. Knows the machine."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def machine_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
