"""Flags that say what is answered, for the verbs that answer many prompts.

Knows: spellings. Does not know: models, methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from entmtp.bench import load_workload
from entmtp.cli.options import SkipBadLines, line_rule
from entmtp.cli.places import Place, given
from entmtp.cli.session import note_skipped
from entmtp.data import Prompt

DEFAULT_MAX_TOKENS = 64


@dataclass(frozen=True)
class WorkloadOptions:
    """What is answered, and how much of it."""

    prompts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME",
            help="JSON lines with `prompt`, `turns`, `messages` or `conversations`, or a set:"
            " packaged, humaneval; may be given several times.",
        ),
    ] = None
    limit: Annotated[
        int | None, typer.Option(help="Prompts in all, drawn evenly over files and kinds.")
    ] = None
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer at the most.")] = (
        DEFAULT_MAX_TOKENS
    )
    skip_bad_lines: SkipBadLines = False

    def files(self) -> list[Place]:
        """What is read."""
        return given("--prompts", *(self.prompts or ()))

    def load(self) -> tuple[Prompt, ...]:
        on_bad = line_rule(self.skip_bad_lines)
        prompts = load_workload(self.prompts or ["packaged"], self.limit, on_bad)
        note_skipped(on_bad)
        return prompts
