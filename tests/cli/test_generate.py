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
from entmtp.engine.batch import Batch
from refusals import one_line
from runtimes import needs_openvino

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


@needs_openvino
def test_a_runtime_can_be_asked_for(capsys: Capture, model_folder: Path) -> None:
    usual = answer(capsys, model_folder)
    assert (usual["runtime"], usual["dtype"]) == ("eager", "float32")
    fast = answer(capsys, model_folder, "--runtime", "openvino")
    assert (fast["runtime"], fast["token_ids"]) == ("openvino", usual["token_ids"])
    int8 = answer(capsys, model_folder, "--runtime", "openvino", "--dtype", "int8")
    assert (int8["runtime"], int8["dtype"]) == ("openvino", "int8")


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


def test_the_flags_reach_the_sampler(capsys: Capture, model_folder: Path) -> None:
    plain = answer(capsys, model_folder)
    first, second = plain["token_ids"][:2]
    likeliest = ["--logit-bias", f"{first}=-100", "--logit-bias", "65=100"]
    assert answer(capsys, model_folder, *likeliest)["token_ids"] == 24 * [65]
    flags = [*likeliest, "--frequency-penalty", "2", "--presence-penalty", "2"]
    assert set(answer(capsys, model_folder, *flags)["token_ids"]) == {65}
    banned = answer(capsys, model_folder, *likeliest, "--ban", "AA")
    assert "AA" not in banned["text"]
    for flag, value in [("--repetition-penalty", "1.5"), ("--repetition-penalty", "0.1")]:
        assert answer(capsys, model_folder, flag, value)["token_ids"] != plain["token_ids"]
    ended = answer(capsys, model_folder, "--stop-token-id", str(second))
    assert ended["token_ids"] == [first, second]
    later = answer(capsys, model_folder, "--stop-token-id", str(second), "--min-tokens", "5")
    assert second not in later["token_ids"][:5]
    assert (
        answer(capsys, model_folder, "--temperature", "1", "--min-p", "1", "--seed", "1")[
            "token_ids"
        ]
        == (plain["token_ids"])
    )


def test_a_seed_that_was_drawn_is_told(capsys: Capture, model_folder: Path) -> None:
    warm = ["--temperature", "1.5"]
    one, other = answer(capsys, model_folder, *warm), answer(capsys, model_folder, *warm)
    assert one["token_ids"] != other["token_ids"]
    again = answer(capsys, model_folder, *warm, "--seed", str(one["seed"]))
    assert again["token_ids"] == one["token_ids"]


def test_several_answers_are_choices(
    capsys: Capture, model_folder: Path, hydra_folder: Path
) -> None:
    arguments = ["generate", "hello", "--model", str(model_folder), "--dtype", "float32", "--json"]
    flags = ["--max-tokens", "9", "--temperature", "1.2", "--seed", "5", "--n", "3"]
    assert run_command([*arguments, *flags]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out.splitlines()[-1])
    choices = report["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 3
    assert report["num_tokens"] == 27
    assert report["num_prompt_tokens"] == len("u:hello\na:")
    # Each text once, in order.
    assert out == "".join(f"{choice['text']}\n" for choice in choices) + out.splitlines()[-1] + "\n"
    assert "answer 3 of 3" in err
    drafted = [*arguments, *flags, "--heads", str(hydra_folder), "--show-drafts"]
    assert run_command(drafted) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["token_ids"] for one in again["choices"]] == [one["token_ids"] for one in choices]


def test_logprobs_are_in_the_json(capsys: Capture, model_folder: Path, hydra_folder: Path) -> None:
    plain = answer(capsys, model_folder, "--logprobs", "2")
    assert [one["token_id"] for one in plain["logprobs"]] == plain["token_ids"]
    for one in plain["logprobs"]:
        # Greedy: the chosen one is the likeliest.
        assert one["top"][0] == {key: one[key] for key in ("token_id", "token", "logprob")}
        assert len(one["top"]) == 2
        assert one["top"][1]["logprob"] <= one["logprob"] <= 0
    drafted = answer(capsys, model_folder, "--logprobs", "2", "--heads", str(hydra_folder))
    assert [one["token_id"] for one in drafted["logprobs"]] == plain["token_ids"]
    assert "logprobs" not in answer(capsys, model_folder)


def test_raw_leaves_the_chat_template_out(capsys: Capture, model_folder: Path) -> None:
    assert answer(capsys, model_folder, "--raw")["num_prompt_tokens"] == len("hello")


def test_B02_no_tokens_no_step(
    capsys: Capture, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    for work in ("join", "step"):  # prefill, and a step
        monkeypatch.setattr(Batch, work, lambda self, *_: steps.append(1))
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
        (["--policy", "odd"], "'--policy': 'odd' is not one of"),
        (["--heads", "nowhere"], "no draft heads at nowhere"),
        (["--dtype", "int3"], "unknown dtype 'int3'"),
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--max-tokens", "-1"], "max_tokens is -1"),
        (["--temperature", "-1"], "temperature is -1"),
        (["--min-p", "2"], "min_p is 2.0"),
        (["--presence-penalty", "nan"], "presence_penalty is nan"),
        (["--repetition-penalty", "0"], "repetition_penalty is 0.0"),
        (["--logit-bias", "13"], "--logit-bias is '13'"),
        (["--logit-bias", "a=1"], "--logit-bias is 'a=1'"),
        (["--logit-bias", "3=inf"], "logit_bias of token id 3 is inf"),
        (["--ban", ""], "banned holds an empty text"),
        (["--min-tokens", "9", "--max-tokens", "8"], "min_tokens is 9 and max_tokens 8"),
        (["--n", "0"], "n is 0"),
        (["--logprobs", "3"], "--logprobs are part of --json"),
        (["--json", "--logprobs", "99"], "logprobs is 99"),
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
    assert said in one_line(["generate", "hello", "--model", str(tmp_path), *flags], capsys)


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
    assert capsys.readouterr().err.splitlines()[-1] == "entmtp: interrupted"


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
