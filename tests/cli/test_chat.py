"""`entmtp chat`: turns, the context's end (B19), and models without a chat template (S19)."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path

import pytest

from entmtp.cli import chat
from entmtp.cli.app import run_command
from entmtp.data import Message
from entmtp.engine import Engine, GenerationParams
from entmtp.engine.load import load
from saved import CHAT_TEMPLATE, save_model

Capture = pytest.CaptureFixture[str]
Talk = Callable[..., tuple[int, str, str]]


@pytest.fixture
def talk(capsys: Capture, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Talk:
    """Says lines to a chat; returns its exit code and what it wrote."""

    def say(*lines: str, model: Path = model_folder, flags: tuple[str, ...] = ()) -> object:
        rest = iter(lines)

        def read(prompt: str = "") -> str:
            try:
                return next(rest)
            except StopIteration:
                raise EOFError from None

        monkeypatch.setattr(builtins, "input", read)
        arguments = ["chat", "--model", str(model), "--dtype", "float32", "--max-tokens", "6"]
        code = run_command([*arguments, *flags])
        return code, *capsys.readouterr()

    return say  # type: ignore[return-value]


def prompt_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the prompts that reach the engine from now on."""
    sizes: list[int] = []
    stream = Engine.stream

    def spy(self: Engine, prompt: list[int], params: object) -> object:
        sizes.append(len(prompt))
        return stream(self, prompt, params)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "stream", spy)
    return sizes


def test_turns_build_on_one_another(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = prompt_sizes(monkeypatch)
    code, out, err = talk("hello", "", "more", "/new", "hello", "/quit", "never said")
    assert code == 0
    assert len(sizes) == 3
    assert sizes[0] == sizes[2] == len("u:hello\na:")
    assert sizes[1] > sizes[0] + len("u:more\na:")
    assert "/quit" in err
    assert "cut at --max-tokens 6" in err
    assert out.count("\n") >= 3


def test_L17_a_second_turn_equals_its_history_at_once(
    talk: Talk, model_folder: Path, hydra_folder: Path
) -> None:
    """Whatever the first turn left behind, the second answers as a fresh engine does."""
    _, out, _ = talk("hello", "more", flags=("--heads", str(hydra_folder)))
    fresh = load(str(model_folder), dtype="float32")
    params = GenerationParams(max_tokens=6)
    first = fresh.generate([Message("user", "hello")], params).text
    turns = [Message("user", "hello"), Message("assistant", first), Message("user", "more")]
    second = load(str(model_folder), dtype="float32").generate(turns, params).text
    assert out == f"{first}\n{second}\n"


def test_the_end_of_input_is_0(talk: Talk) -> None:
    code, out, _ = talk()
    assert (code, out) == (0, "")


def test_a_system_message_stands_in_front(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = prompt_sizes(monkeypatch)
    talk("hello", "/new", "hello", flags=("--system", "be kind"))
    assert sizes == 2 * [len("s:be kind\nu:hello\na:")]


def test_drafts_answer_the_same(talk: Talk, hydra_folder: Path) -> None:
    lines = ("hello", "and now?")
    _, plain, _ = talk(*lines)
    code, drafted, err = talk(*lines, flags=("--heads", str(hydra_folder), "--show-drafts"))
    assert code == 0
    assert drafted == plain
    assert "accepted drafts are in colour" in err


def test_B19_a_full_context_is_a_note(talk: Talk, tmp_path: Path) -> None:
    small = save_model(tmp_path / "small", chat_template=CHAT_TEMPLATE, max_length=64)
    code, _, err = talk(*["ten tokens"] * 8, "/new", "hello", model=small)
    assert code == 0
    assert "context full: with this message" in err
    assert "context 64" in err
    assert "Traceback" not in err
    # After /new there is room again: the last answer was given.
    assert err.rindex("tokens/s") > err.rindex("a new conversation")


def test_B19_an_answer_that_meets_the_limit(talk: Talk, tmp_path: Path) -> None:
    small = save_model(tmp_path / "small", chat_template=CHAT_TEMPLATE, max_length=64)
    code, _, err = talk("x" * 56, model=small)
    assert code == 0
    assert "the answer ends at the model's limit of 64 tokens" in err


def test_S19_no_chat_template_is_one_line_and_2(talk: Talk, bare_model_folder: Path) -> None:
    code, out, err = talk("hello", model=bare_model_folder)
    assert code == 2
    assert "has no chat template" in err
    assert err.count("\n") == 1
    assert out == ""


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("is_terminal", "code"), [(True, 0), (False, 130)])
def test_an_interruption_stops_the_answer_or_the_script(
    is_terminal: bool, code: int, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if is_terminal:
        monkeypatch.setattr(chat.sys, "stdin", Terminal())
    monkeypatch.setattr(chat, "show_answer", interrupt)
    got, _, err = talk("hello")
    assert got == code
    assert ("stopped" in err) is is_terminal
