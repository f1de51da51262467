"""Faster generation with multi-token heads, and exactly the output you would have had anyway.

from entmtp import load

engine = load("smollm2-135m", heads="hydra")
print(engine.generate("Why is the sky blue?").text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from entmtp.decode import Sampling
    from entmtp.engine import Engine, FinishEvent, GenerationParams, Result, TokenEvent
    from entmtp.engine.load import load
    from entmtp.errors import EntmtpError
    from entmtp.trees import Tree

__all__ = [
    "Engine",
    "EntmtpError",
    "FinishEvent",
    "GenerationParams",
    "Result",
    "Sampling",
    "TokenEvent",
    "Tree",
    "load",
]

_ROOMS = {
    "Engine": "engine",
    "EntmtpError": "errors",
    "FinishEvent": "engine",
    "GenerationParams": "engine",
    "Result": "engine",
    "Sampling": "decode",
    "TokenEvent": "engine",
    "Tree": "trees",
    "load": "engine.load",
}


def __getattr__(name: str) -> Any:
    """Import a room when something of it is wanted: `entmtp --help` must not wait for torch."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
