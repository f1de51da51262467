"""Which tree next: policies over trees. Never sees a model."""

from entmtp.scheduler.base import Select, Signals, TreePolicy
from entmtp.scheduler.policies import PlainPolicy, RandomPolicy, StaticPolicy

__all__ = ["PlainPolicy", "RandomPolicy", "Select", "Signals", "StaticPolicy", "TreePolicy"]
