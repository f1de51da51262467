"""Faster generation with multi-token heads, and exactly the output you would have had anyway.

    from entmtp import load

    engine = load("smollm2-135m", heads="hydra")
    print(engine.generate("Why is the sky blue?").text)
"""

from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams, Result, TokenEvent
from entmtp.errors import EntmtpError
from entmtp.engine.load import load
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
