"""Which tree next: policies over trees. Never sees a model."""

from entmtp.scheduler.base import (
    Bid,
    DraftSignals,
    Estimate,
    Room,
    Selection,
    Signals,
    TreePolicy,
)
from entmtp.scheduler.choice import StepChoice, nodes_of, places_in
from entmtp.scheduler.policies import PlainPolicy, RandomPolicy, StaticPolicy
from entmtp.scheduler.sharing import share_rows

__all__ = [
    "Bid",
    "DraftSignals",
    "Estimate",
    "PlainPolicy",
    "RandomPolicy",
    "Room",
    "Selection",
    "Signals",
    "StaticPolicy",
    "StepChoice",
    "TreePolicy",
    "nodes_of",
    "places_in",
    "share_rows",
]
