"""What the pages say can be typed, imported and opened, is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import entmtp
from draft_heads import random_heads
from entmtp.cli.app import VERBS, build
from entmtp.engine import Engine
from entmtp.scheduler import StaticPolicy
from entmtp.trees import chain
from fixtures import byte_tokenizer, tiny_model

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "training/README.md",
    ROOT / "benchmarks/README.md",
]
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of a page's fenced blocks."""
    yield from re.findall(
        r"^```(\w*)\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )


def command_lines(page: Path) -> Iterator[list[str]]:
    """The words behind `entmtp` of all that a page tells one to type."""
    for _, text in blocks(page):
        for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
            if found := re.match(r'(?:M=")?(?:\.venv/bin/)?entmtp ([a-z].*)', line):
                # Behind several spaces stands what it does; brackets hold what may be left out.
                typed = re.split(r"\s{3,}", found[1])[0].strip('"')
                yield shlex.split(typed.translate(str.maketrans("", "", "[]")))


def flags_of(verb: str, *rest: str) -> set[str]:
    command: Any = typer.main.get_command(build(verb)).commands[verb]  # type: ignore[attr-defined]
    if hasattr(command, "commands"):
        command = command.commands[rest[0]]
    return {name for parameter in command.params for name in parameter.opts}


def all_flags(verb: str) -> set[str]:
    """Of a verb, or of all that it has below it."""
    command: Any = typer.main.get_command(build(verb)).commands[verb]  # type: ignore[attr-defined]
    below = getattr(command, "commands", {verb: command}).values()
    return {name for each in below for parameter in each.params for name in parameter.opts}


def test_commands_are_found() -> None:
    typed = [words for page in PAGES for words in command_lines(page)]
    assert {words[0] for words in typed} == VERBS.keys()
    assert ["generate", "Why is the sky blue?", "--heads", "hydra", "--show-drafts"] in typed
    assert sum("--epochs" in words for words in typed) >= 4


@by_page
def test_commands_have_their_verbs_and_flags(page: Path) -> None:
    for verb, *words in command_lines(page):
        assert verb in VERBS
        unknown = {word for word in words if word.startswith("--")} - flags_of(verb, *words)
        assert not unknown, f"entmtp {verb} {' '.join(words)}"


@by_page
def test_flags_in_the_text_are_some_commands(page: Path) -> None:
    known = {"--help"}.union(*map(all_flags, VERBS))
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(re.findall(r"`([^`]+)`", text))))
    assert named <= known


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    missing = [t for t in targets if "://" not in t and not (page.parent / t).exists()]
    assert missing == []


@by_page
def test_files_that_are_named_are_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    named = re.findall(r"`((?:\w+/)+[\w.]+\.(?:py|sh|md))`", text)
    places = (ROOT, page.parent, ROOT / "src/entmtp")
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_the_lines_of_python_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tiny model in the place of the embedded one."""
    from entmtp.target import TargetModel

    target = TargetModel.from_transformers(
        tiny_model(vocab_size=258, max_length=64), byte_tokenizer()
    )
    engine = Engine(target, random_heads(target, "hydra"), StaticPolicy(chain(2)))
    asked: list[tuple[str, object]] = []

    def load(model: str, heads: str | None = None) -> Engine:
        asked.append((model, heads))
        return engine

    monkeypatch.setattr(entmtp, "load", load)
    (lines,) = [text for language, text in blocks(PAGES[0]) if language == "python"]
    assert len(lines.splitlines()) <= 6
    exec(compile(lines, "README.md", "exec"), {})
    assert asked == [("smollm2-135m", "hydra")]
    assert capsys.readouterr().out.strip().endswith("tokens a step")


def test_targets_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    named = {
        t
        for page in PAGES
        for t in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text("utf-8"), re.MULTILINE)
    }
    assert {"demo", "test", "check"} <= named
    assert [name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)] == []
