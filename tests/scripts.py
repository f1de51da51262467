"""Scripts of `benchmarks/` run inside this process, on a tiny model and heads in folders."""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

import pytest

from entmtp.trees import chain, full
from saved import StaticTree, save_model, save_random_heads

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
TREES = tuple(
    StaticTree(tree, 1.1)
    for tree in (
        *(chain(length) for length in (1, 2, 3, 4)),
        *(full(2, depth) for depth in (1, 2, 3)),
        full(3, 1),
        full(3, 2),
    )
)
"""Nine small trees, nested or not."""


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of `benchmarks/`, by the name that its siblings import it by."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module(name)


def run_script(
    module: ModuleType, arguments: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Its `main` with these arguments and one thread; what it wrote."""
    flags = [*arguments, "--threads", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [module.__name__, *flags])
    assert module.main() == 0
    content: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return content


@cache
def tiny_model_folder() -> Path:
    return save_model(Path(mkdtemp(prefix="entmtp-tiny-")), max_length=2048)


@cache
def tiny_heads_folder() -> Path:
    return save_random_heads(Path(mkdtemp(prefix="entmtp-heads-")), "hydra", TREES)
