"""What was asked of one generation, with nothing left open: words are ids, and there is a seed.

Knows: parameters, the target's tokenizer, its ends and limits. Does not know: sequences, steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from entmtp.data.tokenizer import Tokenizer
from entmtp.decode import Sampling
from entmtp.decode.checks import check_ids
from entmtp.decode.noise import sample_seed
from entmtp.engine.choosing import Choosing
from entmtp.engine.params import GenerationParams
from entmtp.errors import BadInput
from entmtp.target.model import TargetModel

FIRST_CAPACITY = 512
"""Cache rows made ready for an answer of unknown length."""


@dataclass(frozen=True)
class Request:
    """One sample of what a user asked for."""

    prompt_ids: tuple[int, ...]
    params: GenerationParams
    """As asked, with a seed"""
    index: int
    """Which of the request's samples this is"""
    sampling: Sampling
    """With this sample's own seed, words as ids, and the ends that come too early"""
    end_ids: frozenset[int]
    max_tokens: int
    """Cut to what the context holds"""

    @property
    def seed(self) -> int:
        """What the user may give to get the same again."""
        return _seed_of(self.params.sampling)

    @property
    def sample_seed(self) -> int:
        """This sample's own."""
        return _seed_of(self.sampling)

    @property
    def choosing(self) -> Choosing:
        return Choosing(self.sampling, self.params.logprobs)

    @property
    def num_expected_rows(self) -> int:
        """Cache rows to begin with, drafts aside."""
        return len(self.prompt_ids) + min(self.max_tokens, FIRST_CAPACITY)


def resolve(
    target: TargetModel, prompt_ids: list[int], params: GenerationParams, index: int = 0
) -> Request:
    """Make a request of ids and parameters; without a seed, one is drawn.

    Raises:
        BadInput: something is asked for that this model has not.
    """
    params = params.seeded()
    if params.stop and target.tokenizer is None:
        raise BadInput("stop strings need a tokenizer; give stop_token_ids instead")
    check_ids("stop_token_ids", params.stop_token_ids, target.vocab_size)
    end_ids = frozenset(params.stop_token_ids)
    if not params.ignore_eos:
        end_ids |= frozenset(target.eos_ids)
    asked = params.sampling
    # An end outside of the vocabulary is never said anyway.
    ends = [one for one in sorted(end_ids) if one < target.vocab_size and params.min_tokens]
    sampling = replace(
        asked,
        seed=sample_seed(_seed_of(asked), index),
        banned_ids=(*asked.banned_ids, *banned_ids(target.tokenizer, params.banned)),
        delays=(*asked.delays, *((one, params.min_tokens) for one in ends)),
    )
    sampling.check_vocabulary(target.vocab_size)
    room = target.max_length - len(prompt_ids)
    return Request(
        prompt_ids=tuple(prompt_ids),
        params=params,
        index=index,
        sampling=sampling,
        end_ids=end_ids,
        max_tokens=room if params.max_tokens is None else min(room, params.max_tokens),
    )


def _seed_of(sampling: Sampling) -> int:
    assert sampling.seed is not None, "the parameters of a request have a seed"
    return sampling.seed


def banned_ids(tokenizer: Tokenizer | None, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """How a tokenizer spells each word: alone, behind a space, and behind a line's end.

    Some tokenizers put a space in front of every text; behind a line's end there is none. The
    same letters cut into other tokens, or in capitals, are another word.
    """
    if not words:
        return ()
    if tokenizer is None:
        raise BadInput("banned words need a tokenizer; give banned_ids instead")

    def spell(text: str) -> tuple[int, ...]:
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])

    line_end = spell("\n")
    found: dict[tuple[int, ...], None] = {}  # a set that keeps its order
    for word in words:
        found |= dict.fromkeys((spell(word), spell(f" {word}")))
        behind = spell(f"\n{word}")
        if line_end and behind[: len(line_end)] == line_end:
            found[behind[len(line_end) :]] = None
    found.pop((), None)
    return tuple(found)
