"""Counters of decoding, in the field's names (STYLE §12). Knows: numbers.

Mean acceptance length counts the bonus token: `1 + num_accepted_tokens / num_drafts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class StepSeconds:
    """Where a sequence's share of its steps' time went, by the host's clock.

    On a GPU the parts are launch times until the one wait of the step; the sum is right.
    """

    draft: float = 0.0
    """The heads: observing accepted states and proposing"""
    verify: float = 0.0
    """The target: forward over the tree, and logits of visited nodes"""
    host: float = 0.0
    """Everything else: policy, topology, sampling, acceptance, cache rows, text, events"""

    @property
    def total(self) -> float:
        return self.draft + self.verify + self.host

    def add(self, other: StepSeconds, share: float = 1.0) -> None:
        self.draft += share * other.draft
        self.verify += share * other.verify
        self.host += share * other.host


@dataclass
class DecodeStats:
    """Counters of one sequence, or of many added up."""

    num_prompt_tokens: int = 0
    num_tokens: int = 0
    """Tokens generated: what the user got"""
    num_drafts: int = 0
    """Steps: one tree drafted and verified in each"""
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    """From the prompt to the first token"""
    decode_seconds: float = 0.0
    """Wall clock of all steps, whoever else took part in them"""
    step_seconds: StepSeconds = field(default_factory=StepSeconds)
    """This sequence's share: the step's time over the sequences in it"""

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per step with the bonus token; None before the first step."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def tokens_per_second(self) -> float | None:
        """Generated tokens over the whole time, prefill included; None before any time passed."""
        seconds = self.prefill_seconds + self.decode_seconds
        return self.num_tokens / seconds if seconds > 0 else None

    def count_step(self, num_draft_tokens: int, num_accepted: int) -> None:
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted
        missing = num_accepted - len(self.num_accepted_tokens_per_pos)
        self.num_accepted_tokens_per_pos.extend([0] * missing)
        for position in range(num_accepted):
            self.num_accepted_tokens_per_pos[position] += 1
