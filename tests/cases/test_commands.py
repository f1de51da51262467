"""Cases B08, B10, B12, B19, L13 and M10 of known faults, as a user meets them: by the command."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from entmtp.cli.app import run_command
from refusals import one_line
from saved import CHAT_TEMPLATE, save_model, save_random_heads
from training_commands import command as training_command
from training_commands import write

Capture = pytest.CaptureFixture[str]
CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short context, a chat template, and no end of sequence in any of its files."""
    folder = save_model(
        tmp_path_factory.mktemp("model"), chat_template=CHAT_TEMPLATE, max_length=CONTEXT
    )
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config.pop("eos_token", None)
    config.pop("bos_token", None)
    file.write_text(json.dumps(config))
    for name in ("config.json", "generation_config.json"):
        assert json.loads((folder / name).read_text()).get("eos_token_id") is None
    return folder


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_heads(tmp_path_factory.mktemp("heads") / "medusa", "medusa")


def arguments(verb: str, model: Path, *flags: str) -> list[str]:
    return [verb, "--model", str(model), "--dtype", "float32", *flags]


def command(verb: str, model: Path, *flags: str) -> int:
    return run_command(arguments(verb, model, *flags))


def answer(capsys: Capture, model: Path, *flags: str) -> dict[str, Any]:
    assert command("generate", model, "--raw", "--json", *flags) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


def refusal(capsys: Capture, model: Path, *flags: str) -> str:
    return one_line(arguments("generate", model, "--raw", *flags), capsys)


@pytest.mark.parametrize("length", [64, 65, 500])
@pytest.mark.parametrize("limit", [[], ["--max-tokens", "5"]])
def test_B08_a_prompt_that_fills_the_context(
    length: int, limit: list[str], capsys: Capture, model: Path
) -> None:
    said = refusal(capsys, model, "x" * length, *limit)
    assert f"{length} tokens" in said
    assert f"context {CONTEXT}" in said


def test_B08_one_token_fits(capsys: Capture, model: Path) -> None:
    report = answer(capsys, model, "x" * 63)
    assert (report["num_tokens"], report["finish_reason"]) == (1, "length")


@pytest.mark.parametrize("length", [63, 62, 54])
def test_B09_speculation_does_not_change_the_default_limit(
    length: int, capsys: Capture, model: Path, heads: Path
) -> None:
    plain = answer(capsys, model, "x" * length)
    drafted = answer(capsys, model, "x" * length, "--heads", str(heads), "--tree", "full-8x2")
    assert plain["num_tokens"] == drafted["num_tokens"] == CONTEXT - length
    assert plain["token_ids"] == drafted["token_ids"]


def test_B10_an_empty_prompt(capsys: Capture, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for prompt in ("", "   ", "\n"):
        assert "the prompt is empty" in refusal(capsys, model, prompt)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert "the prompt is empty" in refusal(capsys, model, "-")
    # An empty turn is skipped, and the next one is answered.
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n\nhi\n"))
    assert command("chat", model, "--max-tokens", "3") == 0
    assert "3 tokens" in capsys.readouterr().err


def test_B12_no_end_of_sequence_anywhere(
    capsys: Capture, model: Path, heads: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags in ([], ["--ignore-eos"], ["--min-tokens", "9"], ["--heads", str(heads)]):
        report = answer(capsys, model, "hello", "--max-tokens", "12", *flags)
        assert (report["num_tokens"], report["finish_reason"]) == (12, "length")
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert command("chat", model, "--max-tokens", "12") == 0
    assert "cut at --max-tokens 12" in capsys.readouterr().err


def test_B12_no_end_of_sequence_for_the_other_commands(
    capsys: Capture, model: Path, heads: Path, tmp_path: Path
) -> None:
    file = write(tmp_path / "prompts.jsonl", [{"prompt": f"ask {i}"} for i in range(4)])
    prompts = ("--prompts", str(file), "--max-tokens", "9")
    demo = ("--methods", "medusa-default", "--medusa", str(heads), "--json")
    assert command("demo", model, *prompts, *demo) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {run["finish_reason"] for run in report["runs"]} == {"length"}
    assert report["settings"]["eos_ids"] == []
    assert command("verify", model, *prompts, "--heads", str(heads), "--tree", "full-2x2") == 0
    training = training_command(model, tmp_path, *prompts, "--num-tokens", "30", "--epochs", "1")
    assert run_command(training) == 0
    rows = (tmp_path / "work/answers.jsonl").read_text().splitlines()
    assert {len(json.loads(row)["answer_ids"]) for row in rows} == {9}


def test_B19_chat_at_the_limit_of_the_context(
    capsys: Capture, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [*["ten tokens"] * 6, "/new", "again", "/quit", "never said"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    assert command("chat", model, "--max-tokens", "6") == 0
    err = capsys.readouterr().err
    assert "context full: with this message the conversation has" in err
    assert f"context {CONTEXT}" in err
    assert err.rindex("tokens/s") > err.rindex("a new conversation")


def test_L13_the_command_says_what_is_not_lossless(
    capsys: Capture, model: Path, heads: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["hello", "--heads", str(heads), "--max-tokens", "8"]
    typical = ["--acceptance", "typical", "--temperature", "1", "--seed", "2"]
    assert answer(capsys, model, *asked)["lossless"] is True
    report = answer(capsys, model, *asked, *typical)
    assert report["lossless"] is False
    assert report["acceptance"] == "typical (not lossless)"
    for verb, flags in (("generate", asked), ("chat", asked[1:])):
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        assert command(verb, model, *flags, *typical) == 0
        assert "NOT lossless" in capsys.readouterr().err
        monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
        assert command(verb, model, *flags) == 0
        assert "lossless" not in capsys.readouterr().err
    file = write(tmp_path / "prompts.jsonl", [{"prompt": "hello"}])
    verify = ("--prompts", str(file), "--heads", str(heads), "--json", *typical)
    command("verify", model, *verify)
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["settings"]["lossless"] is False
    assert "typical acceptance is NOT lossless" in err
    # Greedy texts are the model's own even so.
    plain = answer(capsys, model, "hello", "--max-tokens", "8")["token_ids"]
    assert answer(capsys, model, *asked, "--acceptance", "typical")["token_ids"] == plain


def test_M10_models_and_heads_in_the_place_of_one_another(
    capsys: Capture, model: Path, heads: Path, tmp_path: Path
) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("neither")
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = tmp_path / "bare"
    shutil.copytree(model, bare)
    (bare / "config.json").unlink()
    for place, heads_place, words in (
        (heads, model, "holds a model, not draft heads; pass it as --model"),
        (heads, None, "holds draft heads, not a model"),
        (model, model, "holds a model, not draft heads; pass it as --model"),
        (model, tmp_path / "typo", "no draft heads at"),
        (model, file, "neither heads nor weights"),
        (model, empty, "neither heads nor weights"),
        (bare, heads, "has no config.json"),
        (empty, None, "has no config.json"),
        (file, heads, "is a file, but no .gguf file"),
        (tmp_path / "typo", heads, "no such file or folder"),
    ):
        flags = [] if heads_place is None else ["--heads", str(heads_place)]
        for verb in ("generate", "chat", "verify"):
            prompt = ["hello"] if verb == "generate" else []
            if verb == "verify" and not flags:
                continue
            said = one_line(arguments(verb, place, *prompt, *flags), capsys)
            assert words in said, (verb, place.name, said)
    # Heads alone are missing where drafts are asked for.
    said = one_line(arguments("generate", model, "hello", "--tree", "chain-2"), capsys)
    assert "needs draft heads; pass --heads" in said
