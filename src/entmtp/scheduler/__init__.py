"""Which tree next: policies over trees. Never sees a model."""

from entmtp.scheduler.base import DraftSignals, Selection, Signals, TreePolicy
from entmtp.scheduler.choice import StepChoice, places_in
from entmtp.scheduler.policies import PlainPolicy, RandomPolicy, StaticPolicy

__all__ = [
    "DraftSignals",
    "PlainPolicy",
    "RandomPolicy",
    "Selection",
    "Signals",
    "StaticPolicy",
    "StepChoice",
    "TreePolicy",
    "places_in",
]
