"""The living part: sequences, the decode loop, statistics, stop rules."""

from entmtp.engine.engine import Engine
from entmtp.engine.events import Event, FinishEvent, FinishReason, Result, TokenEvent
from entmtp.engine.params import GenerationParams
from entmtp.engine.prompt import Prompt
from entmtp.engine.stats import DecodeStats, StepSeconds

__all__ = [
    "DecodeStats",
    "Engine",
    "Event",
    "FinishEvent",
    "FinishReason",
    "GenerationParams",
    "Prompt",
    "Result",
    "StepSeconds",
    "TokenEvent",
]
