"""Step times, measured. The table itself lies in the scheduler's room, which decides by it."""

from __future__ import annotations

from entmtp.scheduler.times import StepTimes

__all__ = ["StepTimes"]
