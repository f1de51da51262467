"""Flags that say what is answered, for the verbs that answer many prompts.

Knows: spellings. Does not know: models, methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from entmtp.bench import load_workload
from entmtp.data import Prompt

DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True)
class WorkloadOptions:
    """What is answered, and how much of it."""

    prompts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME",
            help="JSON lines with `prompt` or `turns`, or a set: packaged, humaneval; may be given"
            " several times.",
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(help="Prompts in all, drawn evenly over files and kinds.")
    ] = None
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer at the most.")] = (
        DEFAULT_MAX_TOKENS
    )

    def load(self) -> tuple[Prompt, ...]:
        return load_workload(self.prompts or ["packaged"], self.limit)
