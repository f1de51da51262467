"""What a user may ask of one generation. Knows: limits and defaults. Decides nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from entmtp.data import is_text
from entmtp.decode import Sampling
from entmtp.decode.checks import check_count, check_ids
from entmtp.errors import BadInput

MAX_LOGPROBS = 20
"""Of the likeliest tokens in each place, as OpenAI's."""
MAX_SAMPLES = 128
"""Of one request, as OpenAI's."""


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
    min_tokens: int = 0
    """Tokens to generate at the least: until then ends are ruled out, stop strings are text"""
    ignore_eos: bool = False
    """The model's own end-of-sequence ids end nothing; `stop_token_ids` still do"""
    banned: tuple[str, ...] = ()
    """Words that must not be generated, as the tokenizer spells them"""
    logprobs: int | None = None
    """Tell of every token its log-probability and this many of the likeliest ones in its place:
    the model's own, before temperature and processors. None tells nothing and costs nothing"""

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            check_count("max_tokens", self.max_tokens, 0, None, "0 or a count")
        check_count("min_tokens", self.min_tokens, 0, None, "0 or a count")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise BadInput(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; give at the"
                " most as many"
            )
        if self.logprobs is not None:
            wanted = f"a count from 0 to {MAX_LOGPROBS}"
            check_count("logprobs", self.logprobs, 0, MAX_LOGPROBS, wanted)
        _check_texts("stop", self.stop)
        _check_texts("banned", self.banned)
        if not all(self.banned):
            raise BadInput("banned holds an empty text; give words")
        check_ids("stop_token_ids", self.stop_token_ids)

    def seeded(self) -> GenerationParams:
        """The same with a seed; see `Sampling.seeded`."""
        return replace(self, sampling=self.sampling.seeded())


def _check_texts(name: str, texts: Sequence[object]) -> None:
    if isinstance(texts, str):
        raise BadInput(f"{name} is the string {texts!r}; give a tuple of strings")
    odd = next((one for one in texts if not isinstance(one, str)), None)
    if odd is not None:
        raise BadInput(f"{name} holds {odd!r}; give strings")
    if broken := [one for one in texts if not is_text(str(one))]:
        raise BadInput(f"{name} holds {broken[0]!r}, which is not UTF-8; convert it first")
