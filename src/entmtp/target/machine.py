"""What computes, by name: times measured on one are not those of another. Knows the machine."""

from __future__ import annotations

import platform
from pathlib import Path

import torch


def machine_name(device: torch.device) -> str:
    """The accelerator's name, or the processor's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def _cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """With a word on matrix units, which the names of virtual machines' processors do not tell."""
    try:
        fields = [line.split(":") for line in cpuinfo.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return platform.processor() or platform.machine()
    first = {name.strip(): value.strip() for name, *values in fields[::-1] for value in values[:1]}
    name = first.get("model name", platform.machine())
    return f"{name} with AMX" if "amx_tile" in first.get("flags", "").split() else name
