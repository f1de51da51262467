"""Flags that change the model's own distribution: filters, penalties, words, single tokens.

Knows: spellings. Does not know: verbs, models; what the flags mean is said in `decode`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from entmtp.cli.options import LimitOptions, SamplingOptions
from entmtp.decode import Sampling
from entmtp.engine import GenerationParams
from entmtp.errors import BadInput


@dataclass(frozen=True)
class ProcessingOptions:
    """How logits are changed before a token is chosen; plain and speculative decoding alike."""

    min_p: Annotated[
        float,
        typer.Option(help="Draw from tokens at least this likely beside the likeliest; 0: all."),
    ] = Sampling.min_p
    repetition_penalty: Annotated[
        float,
        typer.Option(help="Divide the logits of tokens seen, prompt included; 1: nothing."),
    ] = Sampling.repetition_penalty
    presence_penalty: Annotated[
        float, typer.Option(help="Take this from the logits of tokens generated before.")
    ] = Sampling.presence_penalty
    frequency_penalty: Annotated[
        float,
        typer.Option(help="Take this from a token's logit for each time it was generated."),
    ] = Sampling.frequency_penalty
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=BIAS",
            help="Add to a token's logit, -100 to 100; may be given several times.",
        ),
    ] = None
    ban: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Never say this word; may be given several times."),
    ] = None

    def processed(self, sampling: Sampling) -> Sampling:
        """The sampling with these put into it."""
        return replace(
            sampling,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=parse_biases(self.logit_bias or ()),
        )


@dataclass(frozen=True)
class AnswerOptions(ProcessingOptions, LimitOptions, SamplingOptions):
    """All that may be asked of an answer."""

    def asked(self) -> GenerationParams:
        """Raises `BadInput` where a value is out of its range."""
        params = self.params(self.processed(self.sampling()))
        return replace(params, banned=tuple(self.ban or ()))


def parse_biases(texts: Sequence[str]) -> tuple[tuple[int, float], ...]:
    """`ID=BIAS` texts as pairs.

    Raises:
        BadInput: one is something else.
    """
    pairs = []
    for text in texts:
        token_id, _, bias = text.partition("=")
        try:
            pairs.append((int(token_id), float(bias)))
        except ValueError as error:
            raise BadInput(
                f"--logit-bias is {text!r}; give a token id, = and a number, as in 13=-2.5"
            ) from error
    return tuple(pairs)
