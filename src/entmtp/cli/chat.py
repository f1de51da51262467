"""`entmtp chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated

import typer

from entmtp.cli.generate import statistics_line
from entmtp.cli.options import DraftOptions, TargetOptions, with_options
from entmtp.cli.processing import AnswerOptions
from entmtp.cli.session import note, open_engine
from entmtp.cli.stream import ShowDrafts, ShowText, legend, show_answer
from entmtp.data import Message, chat_ids
from entmtp.engine import Engine, Event, GenerationParams, Result
from entmtp.errors import BadInput

PROMPT = "> "
HELP = "/new starts afresh · /quit or end of input leaves · Ctrl-C stops an answer"


@with_options
def run(
    target: TargetOptions,
    drafts: DraftOptions,
    answer: AnswerOptions,
    system: Annotated[
        str | None, typer.Option(help="Instructions that stand before the conversation.")
    ] = None,
    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour what was drafted and accepted.")
    ] = False,
) -> None:
    """Talk with the model; each answer appears as it comes.

    A message that no longer fits into the context is refused with a note, and the conversation
    stays as it was.
    """
    params = answer.asked()
    engine = open_engine(target, drafts)
    tokenizer = engine.target.tokenizer
    if tokenizer is None or not tokenizer.chat_template:
        raise BadInput(
            f"{engine.target.name} has no chat template; use a model that has one, or"
            " `entmtp generate --raw`"
        )
    note(HELP)
    if show_drafts:
        legend()
    start = [] if system is None else [Message("system", system)]
    conversation = Conversation(engine, params, start, show_drafts)
    while (line := _read_line()) is not None and line != "/quit":
        if line == "/new":
            conversation.forget()
        elif line:
            conversation.say(line)


def _read_line() -> str | None:
    """The user's next message; None at the end of input."""
    if sys.stdin.isatty():
        # It gives `input` line editing and history, where the platform has it.
        with suppress(ImportError):
            import readline  # noqa: F401
    try:
        return input(PROMPT if sys.stdin.isatty() else "").strip()
    except EOFError:
        return None
    except UnicodeDecodeError as error:
        raise BadInput(f"standard input is not UTF-8 ({error}); convert it first") from error


class Conversation:
    """What was said so far, and how to go on."""

    def __init__(
        self, engine: Engine, params: GenerationParams, start: list[Message], show_drafts: bool
    ) -> None:
        self._engine = engine
        self._params = params
        self._start = tuple(start)
        self._show_drafts = show_drafts
        self._messages = list(start)

    def forget(self) -> None:
        self._messages = list(self._start)
        note("a new conversation")

    def say(self, text: str) -> None:
        """Answer one message and remember both; or say why that cannot be."""
        target = self._engine.target
        assert target.tokenizer is not None
        messages = [*self._messages, Message("user", text)]
        ids = chat_ids(target.tokenizer, messages)
        if len(ids) >= target.max_length:
            note(
                f"context full: with this message the conversation has {len(ids)} tokens, the"
                f" model's context {target.max_length}; the message was left out. Send a shorter"
                " one, or /new"
            )
            return
        reply = self._answer(ids)
        if reply:
            self._messages = [*messages, Message("assistant", reply)]

    def _answer(self, ids: list[int]) -> str:
        """Show the answer; its text as far as it came."""
        tokenizer = self._engine.target.tokenizer
        params = self._params
        show = (
            ShowDrafts(tokenizer, params.stop, params.min_tokens)
            if self._show_drafts
            else ShowText()
        )
        shown: list[str] = []

        def show_and_keep(event: Event) -> None:
            shown.append(event.text)
            show(event)

        try:
            result = show_answer(self._engine.stream(ids, params), show_and_keep)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            print(flush=True)
            note("stopped")
            return "".join(shown)
        print(flush=True)
        self._say_how_it_went(result)
        return result.text

    def _say_how_it_went(self, result: Result) -> None:
        is_drawn = not self._params.sampling.is_greedy
        note(statistics_line(self._engine, result, with_seed=is_drawn))
        if result.finish_reason != "length":
            return
        stats, limit = result.stats, self._engine.target.max_length
        if stats.num_prompt_tokens + stats.num_tokens >= limit:
            note(f"context full: the answer ends at the model's limit of {limit} tokens; /new")
        else:
            note(f"the answer was cut at --max-tokens {self._params.max_tokens}")
