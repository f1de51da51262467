"""How one sequence's tokens are chosen: what a user may ask for, and in which range.

Knows: names, meanings and limits. Does not know: tensors. What the values do is in `processors`
and `filters`; their order is that of `transformers`:

    logit bias · repetition penalty · presence and frequency penalty · banned ids · delays
    temperature · top-k · top-p · min-p                     (for drawn tokens only)
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from sys import float_info

from entmtp.decode.checks import check_count, check_ids, check_number, check_pairs
from entmtp.errors import BadInput

MAX_SEED = 2**63 - 1
MAX_BIAS = 100.0
"""As OpenAI's. A logit seldom lies farther than this from another."""
MAX_PENALTY = 2.0
"""Of presence and frequency, either way, as OpenAI's."""
REPETITION_PENALTIES = (0.01, 100.0)
"""Beyond these, logits that were divided or multiplied leave float32."""
_SEED_BITS = 53
"""Of a seed drawn here: every JSON reader can hold it."""


@dataclass(frozen=True)
class Sampling:
    """How one sequence's tokens are chosen."""

    temperature: float = 0.0
    """0 takes the likeliest token, ties to the lowest id"""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all"""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this mass; 1 keeps all"""
    seed: int | None = None
    """Same seed, same text; None draws a seed for each request, and its result tells which"""
    min_p: float = 0.0
    """Keep tokens at least this likely in proportion to the likeliest one; 0 keeps all"""
    repetition_penalty: float = 1.0
    """Divide (multiply, if negative) the logits of tokens in the prompt or the text by this"""
    presence_penalty: float = 0.0
    """Take this from the logits of tokens that were generated (the prompt does not count)"""
    frequency_penalty: float = 0.0
    """Take this from the logit of a generated token for each time it was generated"""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what to add to its logit)"""
    banned_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of token ids that must not be generated: the last id is ruled out behind the
    others, the prompt's end included"""
    delays: tuple[tuple[int, int], ...] = ()
    """(token id, ruled out until so many were generated); the engine puts a sequence's ends here
    for `min_tokens`"""

    def __post_init__(self) -> None:
        wanted = "a finite number from 0 up"
        check_number("temperature", self.temperature, 0, float_info.max, wanted)
        check_count("top_k", self.top_k, 0, None, "0 (all) or a count")
        check_number("top_p", self.top_p, 0, 1, "a number above 0 and up to 1")
        if self.top_p == 0:
            raise BadInput(f"top_p is {self.top_p}; give a number above 0 and up to 1")
        check_number("min_p", self.min_p, 0, 1, "a number from 0 (all) to 1")
        if self.seed is not None:
            check_count("seed", self.seed, 0, MAX_SEED, "a whole number from 0 to 2^63 - 1")
        self._check_penalties()
        self._check_ids()

    def _check_penalties(self) -> None:
        low, high = REPETITION_PENALTIES
        wanted = f"a number from {low:g} to {high:g} (1 changes nothing)"
        check_number("repetition_penalty", self.repetition_penalty, low, high, wanted)
        wanted = f"a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}"
        for name in ("presence_penalty", "frequency_penalty"):
            check_number(name, getattr(self, name), -MAX_PENALTY, MAX_PENALTY, wanted)

    def _check_ids(self) -> None:
        check_pairs("logit_bias", self.logit_bias, "pairs of token id and bias")
        check_pairs("delays", self.delays, "pairs of token id and count")
        wanted = f"a number from {-MAX_BIAS:g} to {MAX_BIAS:g}"
        check_ids("logit_bias", (token_id for token_id, _ in self.logit_bias))
        for token_id, bias in self.logit_bias:
            check_number(f"logit_bias of token id {token_id}", bias, -MAX_BIAS, MAX_BIAS, wanted)
        if len(dict(self.logit_bias)) < len(self.logit_bias):
            raise BadInput("logit_bias names a token id twice; give each id once")
        if not isinstance(self.banned_ids, tuple | list) or not all(self.banned_ids):
            wanted = "sequences of token ids, none of them empty"
            raise BadInput(f"banned_ids is {self.banned_ids!r}; give {wanted}")
        for sequence in self.banned_ids:
            check_ids("a sequence in banned_ids", sequence)
        check_ids("delays", (token_id for token_id, _ in self.delays))
        for token_id, count in self.delays:
            check_count(f"delay of token id {token_id}", count, 0, None, "0 or a count of tokens")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_filtered(self) -> bool:
        """Tokens may be kept or not for the likelihood of others."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0

    @property
    def is_processed(self) -> bool:
        """Logits are changed before temperature."""
        return (
            self.repetition_penalty != 1
            or self.presence_penalty != 0
            or self.frequency_penalty != 0
            or bool(self.logit_bias or self.banned_ids or self.delays)
        )

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise `BadInput` for an id outside of a vocabulary, or where nothing of it is left."""
        check_ids("logit_bias", (token_id for token_id, _ in self.logit_bias), vocab_size)
        for sequence in self.banned_ids:
            check_ids("a sequence in banned_ids", sequence, vocab_size)
        check_ids("delays", (token_id for token_id, _ in self.delays), vocab_size)
        self._check_choice(vocab_size)

    def _check_choice(self, vocab_size: int) -> None:
        """There must be a token to say behind every text, or id 0 would be said unasked."""
        early = {token_id for token_id, count in self.delays if count}
        if len(early.union(one[-1] for one in self.banned_ids)) < vocab_size:
            return
        ruled_out: dict[tuple[int, ...], set[int]] = {(): early}
        for sequence in self.banned_ids:
            ruled_out.setdefault(tuple(sequence[:-1]), set()).add(sequence[-1])
        left = set(range(vocab_size)) - ruled_out[()]
        for beginning in ruled_out:
            # Behind it, sequences count that begin with its end, too.
            tails = (beginning[start:] for start in range(len(beginning)))
            more = set[int]().union(*(ruled_out.get(tail, ()) for tail in tails))
            if len(more) >= len(left) and left <= more:
                behind = f" behind {list(beginning)}" if beginning else ""
                raise BadInput(
                    f"banned ids and ends that are too early rule out all {vocab_size} tokens of"
                    f" the vocabulary{behind}; leave one that may be said"
                )

    def seeded(self) -> Sampling:
        """The same with a seed: its own, or else a fresh random one; 0 where nothing is drawn."""
        if self.seed is not None:
            return self
        return replace(self, seed=0 if self.is_greedy else secrets.randbits(_SEED_BITS))
