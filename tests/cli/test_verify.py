"""`entmtp verify` on a tiny model: passes as it is, and fails where attention is broken."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from entmtp.cli.app import run_command
from entmtp.engine import drafting
from entmtp.trees import TreeBuffers, tree_buffers
from refusals import one_line

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def flags(model_folder: Path, hydra_folder: Path, tmp_path: Path) -> list[str]:
    """Three prompts; the tree sees 16 rows at once."""
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": name, "prompt": text} for name, text in (("a", "hello"), ("b", "1 + 1"))]
    rows.append({"id": "c", "prompt": "a longer one, of several words"})
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [
        "verify",
        *("--model", str(model_folder), "--heads", str(hydra_folder), "--tree", "full-3x2"),
        *("--prompts", str(prompts), "--max-tokens", "24", "--json"),
    ]


def verdict(capsys: Capture, flags: list[str], code: int = 0) -> tuple[dict[str, Any], str, str]:
    """The JSON, what else was said on standard output, and standard error."""
    assert run_command(flags) == code
    out, err = capsys.readouterr()
    *shown, last = out.splitlines()
    return json.loads(last), "\n".join(shown), err


@pytest.fixture
def siblings_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of a tree sees every other. The self-check at load does not see this fault."""

    def all_visible(*arguments: object) -> TreeBuffers:
        buffers = tree_buffers(*arguments)  # type: ignore[arg-type]
        return dataclasses.replace(buffers, mask=torch.ones_like(buffers.mask))

    monkeypatch.setattr(drafting, "tree_buffers", all_visible)


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_in_float32_all_is_identical(capsys: Capture, flags: list[str], temperature: str) -> None:
    report, shown, err = verdict(
        capsys, [*flags, "--dtype", "float32", "--temperature", temperature]
    )
    assert report["passed"]
    assert (report["method"], report["num_prompts"], report["num_identical"]) == (
        "hydra-static",
        3,
        3,
    )
    assert report["differences"] == []
    assert report["max_ratio"] is None
    assert "3 of 3 prompts identical to plain" in shown
    assert "entmtp:" not in err


def test_in_bfloat16_differences_are_rounding(capsys: Capture, flags: list[str]) -> None:
    report, shown, _ = verdict(capsys, [*flags, "--dtype", "bfloat16", "--max-tokens", "100"])
    assert report["passed"]
    assert report["num_identical"] + report["num_rounding"] == 3
    assert report["num_rounding"] > 0, "choose prompts of which one meets a near-tie"
    assert 0 <= report["max_ratio"] <= report["ratio_allowed"] == 2
    assert f"{report['num_rounding']} rounding" in shown


@pytest.mark.usefixtures("siblings_visible")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_L02_broken_attention_is_1_and_names_prompt_and_token(
    dtype: str, capsys: Capture, flags: list[str]
) -> None:
    report, shown, err = verdict(capsys, [*flags, "--dtype", dtype], code=1)
    assert not report["passed"]
    assert report["num_faults"] > 0
    first = max(
        (one for one in report["differences"] if one["verdict"] == "fault"),
        key=lambda one: one["ratio"] or 0.0,
    )
    place = f"on prompt {first['prompt_id']} at token {first['num_common']}"
    assert f"hydra-static differs from plain {place}" in err
    assert "fault" in shown
    if dtype == "bfloat16":
        assert first["ratio"] > 2
    else:
        assert "in float32 nothing may differ" in err


@pytest.mark.usefixtures("siblings_visible")
@pytest.mark.parametrize(
    "more",
    [
        ("--top-k", "40"),
        ("--min-p", "0.05", "--repetition-penalty", "1.3", "--ban", "a", "--logit-bias", "7=2"),
    ],
)
def test_filters_and_processors_are_judged_too(
    more: tuple[str, ...], capsys: Capture, flags: list[str]
) -> None:
    filtered = ("--temperature", "1", *more)
    report, _, _ = verdict(capsys, [*flags, *filtered], code=1)
    judged = report["num_rounding"] + report["num_faults"]
    assert judged == len(report["differences"]) >= report["num_faults"] > 0
    # In float32 no judge is needed.
    report, _, _ = verdict(capsys, [*flags, *filtered, "--dtype", "float32"], code=1)
    assert report["num_faults"] == len(report["differences"]) > 0


def test_penalties_reach_the_answers(capsys: Capture, flags: list[str]) -> None:
    """And are exact: a float32 verdict with them is of other answers than one without."""
    exact = [*flags, "--dtype", "float32"]
    plain, _, _ = verdict(capsys, exact)
    report, _, _ = verdict(capsys, [*exact, "--frequency-penalty", "2", "--ban", "a"])
    assert report["num_identical"] == plain["num_identical"] == 3
    answers = [[run["token_ids"] for run in each["runs"]] for each in (plain, report)]
    assert answers[0] != answers[1]


def test_random_trees(capsys: Capture, flags: list[str]) -> None:
    tree = flags.index("--tree")
    del flags[tree : tree + 2]
    report, _, _ = verdict(capsys, [*flags, "--policy", "random", "--dtype", "float32"])
    assert (report["method"], report["num_identical"]) == ("hydra-random", 3)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tree", "root"], "policy static never drafts, so there is nothing to verify"),
        (["--max-tokens", "0"], "answers of 0 tokens leave nothing to verify"),
        (["--heads", "nowhere"], "no draft heads at nowhere"),
        (["--prompts", "nowhere.jsonl"], "no prompts 'nowhere.jsonl'"),
        (["--dtype", "int4"], "unknown dtype 'int4'"),
        (["--policy", "plain"], "contradict each other"),
    ],
)
def test_wrong_use_is_one_line_and_2(
    more: list[str], said: str, capsys: Capture, flags: list[str]
) -> None:
    assert said in one_line([*flags, *more], capsys)


def test_no_heads_is_nothing_to_verify(capsys: Capture, model_folder: Path) -> None:
    assert run_command(["verify", "--model", str(model_folder)]) == 2
    assert "nothing to verify; pass --heads" in capsys.readouterr().err


def test_help_says_what_1_means(capsys: Capture) -> None:
    assert run_command(["verify", "--help"]) == 0
    assert "1 a difference that rounding does not" in " ".join(capsys.readouterr().out.split())
