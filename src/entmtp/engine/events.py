"""What the engine tells while it works. Knows: results of steps. Decides nothing."""

from __future__ import annotations

from typing import Literal, NamedTuple

from entmtp.engine.stats import DecodeStats

FinishReason = Literal["stop", "length", "cancelled"]


class TokenEvent(NamedTuple):
    """The tokens that one sequence got from one step (or from its prefill)."""

    request_id: int
    token_ids: tuple[int, ...]
    text: str
    """New text that is safe to show: no half character, no beginning of a stop string"""
    num_accepted: int
    """Of `token_ids`, the first this many were drafted and accepted"""
    num_draft_tokens: int
    """Drafts verified in the step"""


class Result(NamedTuple):
    """All of one sequence."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: DecodeStats


class FinishEvent(NamedTuple):
    """A sequence is over; its cache rows are free."""

    request_id: int
    text: str
    """Text that had been held back until the end was known"""
    result: Result


Event = TokenEvent | FinishEvent
