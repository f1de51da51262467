"""Answers in a terminal: accepted drafts are in colour, and nothing else is touched."""

from __future__ import annotations

import sys
from typing import Protocol

import pytest
import typer

from draft_heads import exact_heads
from entmtp.cli.stream import ShowDrafts, ShowText, show_answer
from entmtp.engine import Engine, Event, GenerationParams, Result
from entmtp.scheduler import StaticPolicy
from entmtp.trees import chain
from fixtures import BOS, byte_tokenizer, script, script_order

Capture = pytest.CaptureFixture[str]
TEXT = "abcdefghi\tj"


class Show(Protocol):
    def __call__(self, event: Event) -> None: ...


def pretend_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """To be called from the test: around fixtures another standard output is in place."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)


def answer(show: Show, text: str = TEXT, stop: tuple[str, ...] = ()) -> Result:
    target = script(text)
    heads = exact_heads(target, script_order(text), "medusa", 3)
    engine = Engine(target, heads, StaticPolicy(chain(3)))
    return show_answer(engine.stream([BOS], GenerationParams(stop=stop)), show)


def coloured(text: str) -> str:
    return typer.style(text, fg="green", bold=True)


def test_accepted_drafts_are_coloured(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first token comes from the prompt; then three drafts and the model's own, again."""
    pretend_terminal(monkeypatch)
    answer(ShowDrafts(byte_tokenizer(), ()))
    green = "".join(map(coloured, "bcd")), "".join(map(coloured, "fgh"))
    assert capsys.readouterr().out == f"a{green[0]}e{green[1]}i" + "".join(map(coloured, "\tj"))


def test_without_colour_they_are_bold(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    answer(ShowDrafts(byte_tokenizer(), ()), "ab")
    assert capsys.readouterr().out == "a" + typer.style("b", bold=True)


@pytest.mark.parametrize("stop", [(), ("fg",), ("bcx", "e")])
def test_a_pipe_gets_the_text_to_the_letter(stop: tuple[str, ...], capsys: Capture) -> None:
    for show in (ShowText(), ShowDrafts(byte_tokenizer(), stop)):
        result = answer(show, stop=stop)
        assert capsys.readouterr().out == result.text


@pytest.mark.parametrize("kind", ["text", "drafts"])
def test_a_model_cannot_command_the_terminal(
    kind: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_terminal(monkeypatch)
    show = ShowText() if kind == "text" else ShowDrafts(byte_tokenizer(), ())
    answer(show, "\x1bz\x07y")
    shown = capsys.readouterr().out
    assert "\x07" not in shown
    assert "\x1bz" not in shown
    assert [letter for letter in shown if letter in "yz"] == ["z", "y"]
