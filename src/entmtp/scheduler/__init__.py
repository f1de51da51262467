"""Which tree next: policies over trees. Never sees a model."""

from entmtp.scheduler.acceptance import StepFunction, identity_by_log_prob
from entmtp.scheduler.adapting import Adaptation
from entmtp.scheduler.banded import HysteresisPolicy, LadderPolicy
from entmtp.scheduler.bank import MadeFor, TreeBank
from entmtp.scheduler.bank_file import read_bank, write_bank
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
from entmtp.scheduler.per_step import PerStepPolicy
from entmtp.scheduler.policies import PlainPolicy, RandomPolicy, StaticPolicy
from entmtp.scheduler.published import PublishedHysteresis, PublishedLadder
from entmtp.scheduler.record import Decision, Recorded, decision_of
from entmtp.scheduler.registry import policy_from_bank
from entmtp.scheduler.sharing import share_rows
from entmtp.scheduler.throughput import Stage, ThroughputPolicy
from entmtp.scheduler.times import AtContext, OfBatch, StepTimes, Times, at_any_length

__all__ = [
    "Adaptation",
    "AtContext",
    "Bid",
    "Decision",
    "DraftSignals",
    "Estimate",
    "HysteresisPolicy",
    "LadderPolicy",
    "MadeFor",
    "OfBatch",
    "PerStepPolicy",
    "PlainPolicy",
    "PublishedHysteresis",
    "PublishedLadder",
    "RandomPolicy",
    "Recorded",
    "Room",
    "Selection",
    "Signals",
    "Stage",
    "StaticPolicy",
    "StepChoice",
    "StepFunction",
    "StepTimes",
    "ThroughputPolicy",
    "Times",
    "TreeBank",
    "TreePolicy",
    "at_any_length",
    "decision_of",
    "identity_by_log_prob",
    "nodes_of",
    "places_in",
    "policy_from_bank",
    "read_bank",
    "share_rows",
    "write_bank",
]
