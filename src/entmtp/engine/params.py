"""What a user may ask of one generation. Knows: limits and defaults. Decides nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from entmtp.decode import Sampling
from entmtp.errors import BadInput


@dataclass(frozen=True)
class GenerationParams:
    """Limits and sampling of one generation."""

    max_tokens: int | None = None
    """Tokens to generate at the most; None goes on to the end of the context"""
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[str, ...] = ()
    """Strings that end the text; they are not part of it. Empty ones are ignored"""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end the text, besides the model's own end-of-sequence ids"""

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 0:
            raise BadInput(f"max_tokens is {self.max_tokens}; give 0 or a count")
        if isinstance(self.stop, str):
            raise BadInput(f"stop is the string {self.stop!r}; give a tuple of strings")
