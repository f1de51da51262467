"""`entmtp generate`: text, figures, contradictions, and case B02's limit of nothing."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from entmtp.cli import generate
from entmtp.cli.app import run_command
from entmtp.engine import Engine

Capture = pytest.CaptureFixture[str]
FIELDS = {
    "text",
    "token_ids",
    "finish_reason",
    "num_prompt_tokens",
    "num_tokens",
    "num_steps",
    "mean_acceptance_length",
    "tokens_per_second",
    "method",
    "lossless",
}


def answer(capsys: Capture, model: Path, *flags: str) -> dict[str, Any]:
    """The JSON of one answer in float32."""
    arguments = ["generate", "hello", "--model", str(model), "--dtype", "float32", "--json"]
    assert run_command([*arguments, "--max-tokens", "24", *flags]) == 0
    out = capsys.readouterr().out
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert out.startswith(report["text"] + "\n")
    return report


def test_json_has_the_promised_fields(capsys: Capture, model_folder: Path) -> None:
    report = answer(capsys, model_folder)
    assert report.keys() >= FIELDS
    assert report["method"] == "plain"
    assert report["lossless"] is True
    assert report["finish_reason"] == "length"
    assert report["num_tokens"] == len(report["token_ids"]) == 24
    assert report["num_steps"] == 23
    assert report["mean_acceptance_length"] == 1.0
    assert report["num_prompt_tokens"] == len("u:hello\na:")
    assert report["tokens_per_second"] > 0


@pytest.mark.parametrize(
    ("flags", "method"),
    [
        ([], "hydra-static"),
        (["--tree", "chain-2"], "hydra-static"),
        (["--tree", "medusa-63"], "hydra-default"),
        (["--tree", "root"], "plain"),
        (["--policy", "random"], "hydra-random"),
        (["--policy", "plain"], "plain"),
        (["--show-drafts"], "hydra-static"),
    ],
)
@pytest.mark.parametrize("sampling", [[], ["--temperature", "1.1", "--top-k", "50", "--seed", "3"]])
def test_drafts_change_nothing_but_the_method(
    flags: list[str],
    method: str,
    sampling: list[str],
    capsys: Capture,
    model_folder: Path,
    hydra_folder: Path,
) -> None:
    plain = answer(capsys, model_folder, *sampling)
    drafted = answer(capsys, model_folder, "--heads", str(hydra_folder), *flags, *sampling)
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["text"] == plain["text"]
    assert drafted["method"] == method


def test_typical_acceptance_says_that_it_is_lossy(
    capsys: Capture, model_folder: Path, hydra_folder: Path
) -> None:
    flags = ["--heads", str(hydra_folder), "--acceptance", "typical", "--temperature", "1"]
    assert answer(capsys, model_folder, *flags)["lossless"] is False


def test_raw_leaves_the_chat_template_out(capsys: Capture, model_folder: Path) -> None:
    assert answer(capsys, model_folder, "--raw")["num_prompt_tokens"] == len("hello")


def test_B02_no_tokens_no_step(
    capsys: Capture, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(Engine, "_decode_step", lambda self: steps.append(1))
    report = answer(capsys, model_folder, "--max-tokens", "0")
    assert steps == []
    assert report["token_ids"] == []
    assert report["finish_reason"] == "length"
    # P09: what nothing was divided by is null.
    assert report["mean_acceptance_length"] is None
    assert report["tokens_per_second"] is None


def test_stop_strings_are_repeatable(capsys: Capture, model_folder: Path) -> None:
    text = answer(capsys, model_folder, "--raw")["text"]
    place = next(i for i, letter in enumerate(text) if i > 2 and letter not in text[:i])
    report = answer(capsys, model_folder, "--raw", "--stop", "\0none\0", "--stop", text[place])
    assert report["finish_reason"] == "stop"
    assert report["text"] == text[:place]


def test_a_prompt_from_standard_input(
    capsys: Capture, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello"))
    arguments = ["generate", "-", "--model", str(model_folder), "--max-tokens", "3", "--json"]
    assert run_command([*arguments, "--dtype", "float32"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["num_prompt_tokens"] == len("u:hello\na:")


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_B10_an_empty_prompt_is_refused_before_loading(prompt: str, capsys: Capture) -> None:
    assert run_command(["generate", prompt, "--model", "never-loaded"]) == 2
    assert capsys.readouterr().err == "entmtp: the prompt is empty; give some text\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--tree", "chain-2", "--policy", "plain"], "contradict each other"),
        (["--tree", "chain-2", "--policy", "random"], "contradict each other"),
        (["--policy", "static"], "needs draft heads"),
        (["--tree", "chain-2"], "needs draft heads"),
        (["--acceptance", "typical"], "needs drafts"),
        (["--policy", "odd"], "'odd' is not one of"),
        (["--heads", "nowhere"], "no draft heads at nowhere"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--max-tokens", "-1"], "max_tokens is -1"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--temperature", "nan"], "temperature is nan"),
        (["--top-p", "0"], "top_p is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--model", "smollm2-135n"], "did you mean smollm2-135m?"),
    ],
)
def test_wrong_use_is_one_line_and_2(
    flags: list[str], said: str, capsys: Capture, tmp_path: Path
) -> None:
    """Nothing is loaded: the model's folder is empty."""
    assert run_command(["generate", "hello", "--model", str(tmp_path), *flags]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize(("tree", "said"), [("chain-9", "9 deep"), ("full-300x1", "rank 299")])
def test_a_tree_that_the_heads_cannot_fill(
    tree: str, said: str, capsys: Capture, model_folder: Path, hydra_folder: Path
) -> None:
    arguments = ["generate", "hello", "--model", str(model_folder), "--dtype", "float32"]
    assert run_command([*arguments, "--heads", str(hydra_folder), "--tree", tree]) == 2
    assert said in capsys.readouterr().err


def test_interrupted_is_130(
    capsys: Capture, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(generate, "show_answer", interrupt)
    arguments = ["generate", "hello", "--model", str(model_folder), "--dtype", "float32"]
    assert run_command(arguments) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_nothing_but_the_text_on_standard_output(
    capsys: Capture, model_folder: Path, hydra_folder: Path
) -> None:
    arguments = ["generate", "hello", "--model", str(model_folder), "--dtype", "float32"]
    flags = ["--max-tokens", "9", "--heads", str(hydra_folder), "--show-drafts"]
    assert run_command([*arguments, *flags, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out == json.loads(out.splitlines()[-1])["text"] + "\n" + out.splitlines()[-1] + "\n"
    assert "accepted drafts are in colour" in err
    assert "bonus token included" in err
    assert "hydra-static" in err
