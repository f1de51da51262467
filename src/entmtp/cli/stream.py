"""Answers in the terminal as they come, plainly or with the drafts in colour.

Knows: events and the terminal. Does not know: models, flags, verbs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

import typer

from entmtp.cli.session import note
from entmtp.data.tokenizer import Tokenizer
from entmtp.engine import Event, FinishEvent, Result, TokenEvent
from entmtp.engine.text import TextStream

_UNSAFE = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])
"""Control characters that a model may write and a terminal might obey; tab and newline are fine."""


class Show(Protocol):
    """Shows an answer's events."""

    def __call__(self, event: Event) -> None: ...


def harmless(text: str) -> str:
    """Text that a terminal may be given."""
    return text.translate(_UNSAFE)


def show_answer(events: Iterator[Event], show: Show) -> Result:
    """Show one answer to its end. An interruption frees what the answer holds."""
    with closing(events):  # type: ignore[type-var]  # it is a generator
        for event in events:
            show(event)
            if isinstance(event, FinishEvent):
                return event.result
    raise AssertionError("a request ends with a FinishEvent")


class ShowText:
    """The text alone: in a pipe to the letter."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()

    def __call__(self, event: Event) -> None:
        text = harmless(event.text) if self._is_terminal else event.text
        sys.stdout.write(text)
        sys.stdout.flush()


class ShowDrafts:
    """The text with accepted drafts in colour, token by token; in a pipe the text alone."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop: tuple[str, ...],
        min_tokens: int = 0,
    ) -> None:
        """`stop` and `min_tokens` as the answer was asked for."""
        self._is_terminal = sys.stdout.isatty()
        self._text = TextStream(tokenizer, stop, min_tokens)

    def __call__(self, event: Event) -> None:
        if isinstance(event, TokenEvent):
            for index, token_id in enumerate(event.token_ids):
                self._text.push(token_id)
                self._write(self._text.take(), is_draft=index < event.num_accepted)
        else:
            self._write(self._text.flush(), is_draft=False)
        sys.stdout.flush()

    def _write(self, text: str, *, is_draft: bool) -> None:
        if self._is_terminal:
            text = harmless(text)
        sys.stdout.write(accepted(text) if is_draft and text and self._is_terminal else text)


def accepted(text: str) -> str:
    """Text in the colour of accepted drafts; in bold alone where colours are unwanted."""
    return typer.style(text, fg=None if os.environ.get("NO_COLOR") else "green", bold=True)


def legend() -> None:
    """Say on standard error what the colours mean."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        note(f"{accepted('drafted and accepted')} · the model's own token of each step")
    else:
        note("accepted drafts are in colour where standard output is a terminal")
