"""What the engine tells while it works. Knows: results of steps. Decides nothing."""

from __future__ import annotations

from typing import Literal, NamedTuple

from entmtp.decode import TokenLogprob
from entmtp.engine.stats import DecodeStats
from entmtp.scheduler import Decision

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
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of `token_ids`, where they were asked for"""
    decision: Decision | None = None
    """How the step's tree was chosen, and what came of it; None for the prompt's own token"""


class Result(NamedTuple):
    """All of one sequence."""

    request_id: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: DecodeStats
    seed: int = 0
    """The request's: given, or drawn for it; with it the same text comes again"""
    sample_index: int = 0
    """Which of a request's samples this is"""
    logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each of `token_ids`, where they were asked for"""


class FinishEvent(NamedTuple):
    """A sequence is over; its cache rows are free."""

    request_id: int
    text: str
    """Text that had been held back until the end was known"""
    result: Result


Event = TokenEvent | FinishEvent
