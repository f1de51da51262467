"""`entmtp demo` from flags to figures, on a tiny model in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entmtp.bench import best_tree, identity
from entmtp.cli.app import run_command
from refusals import one_line
from saved import save_random_heads

Capture = pytest.CaptureFixture[str]
METHODS = ["plain", "medusa-default", "medusa-best", "hydra-default", "hydra-best"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the times here."""
    monkeypatch.setattr(best_tree, "NUM_ROUNDS", 1)


@pytest.fixture
def flags(model_folder: Path, medusa_folder: Path, hydra_folder: Path, tmp_path: Path) -> list[str]:
    """Two short prompts on the tiny model."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "one", "prompt": "hello"}\n{"id": "two", "turns": ["a", "b"]}\n')
    folders = {"model": model_folder, "medusa": medusa_folder, "hydra": hydra_folder}
    return [
        "demo",
        *(word for name, folder in folders.items() for word in (f"--{name}", str(folder))),
        *("--prompts", str(prompts), "--max-tokens", "10", "--dtype", "float32", "--json"),
    ]


def figures(capsys: Capture, flags: list[str]) -> dict[str, Any]:
    assert run_command(flags) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


def test_every_method_gives_the_same_tokens(capsys: Capture, flags: list[str]) -> None:
    report = figures(capsys, [*flags, "--methods", ",".join(METHODS)])
    assert [method["name"] for method in report["methods"]] == METHODS
    for method in report["methods"]:
        assert method["num_identical"] == method["num_prompts"] == 2
        assert method["num_tokens"] == 20
        assert method["tokens_per_second"] > 0
        assert method["speedup_low"] <= method["speedup"] <= method["speedup_high"]
        # Of two prompts there is a median, and no interval.
        assert method["speedup_low"] <= method["speedup_median"] <= method["speedup_high"]
        assert method["speedup_median_low"] is None
        assert method["mean_acceptance_length"] >= 1
        parts = [method[f"{part}_share"] for part in ("draft", "verify", "host")]
        assert sum(parts) == pytest.approx(1)
        assert all(-0.01 < part < 1 for part in parts)
    assert report["methods"][0]["speedup"] == 1
    assert len(report["runs"]) == 2 * len(METHODS)
    assert report["settings"]["seed"] == 0
    assert report["environment"]["model_fingerprint"]
    assert report["environment"]["versions"]["torch"]
    assert set(report["best_trees"]) == {"medusa", "hydra"}


def test_the_table_and_an_answer_are_for_people(capsys: Capture, flags: list[str]) -> None:
    assert run_command([*flags, "--limit", "1"]) == 0
    out, err = capsys.readouterr()
    for words in ("hello", "--- hydra-best", "tok/step", "bonus token included", "1/1"):
        assert words in out
    assert "trees timed on this machine" in out
    assert "Traceback" not in err


def test_P09_a_demo_of_nothing_is_null(capsys: Capture, flags: list[str]) -> None:
    report = figures(capsys, [*flags, "--max-tokens", "0"])
    for method in report["methods"]:
        assert method["num_tokens"] == 0
        assert method["tokens_per_second"] is None
        assert method["speedup"] is None
        assert method["speedup_median"] is None
        assert method["mean_acceptance_length"] is None
        assert method["host_share"] is None


def test_heads_without_trees_are_tried(capsys: Capture, flags: list[str], tmp_path: Path) -> None:
    bare = save_random_heads(tmp_path / "bare", "medusa", ())
    report = figures(capsys, [*flags, "--medusa", str(bare), "--methods", "medusa-best"])
    candidates = report["best_trees"]["medusa"]["candidates"]
    assert [row["depth"] for row in candidates] == [1, 2, 3, 4, 4]


def test_a_difference_in_float32_is_1_and_names_the_prompt(
    capsys: Capture, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    differ = identity.first_difference
    monkeypatch.setattr(
        identity, "first_difference", lambda one, other: differ(one, [*other[:3], -1])
    )
    assert run_command([*flags, "--methods", "hydra-default"]) == 1
    out, err = capsys.readouterr()
    assert "hydra-default differs from plain on prompt one at token 3" in err
    assert json.loads(out.splitlines()[-1])["methods"][1]["num_identical"] == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--methods", "plain,nonsense"], "no method 'nonsense'"),
        (["--hydra", "nowhere"], "no draft heads at nowhere"),
        (["--prompts", "nowhere.jsonl"], "no prompts 'nowhere.jsonl'"),
        (["--limit", "0"], "a limit of 0 prompts leaves nothing"),
        (["--max-tokens", "-3"], "max_tokens is -3"),
    ],
)
def test_wrong_use_is_one_line_and_2(
    more: list[str], said: str, capsys: Capture, flags: list[str]
) -> None:
    assert said in one_line([*flags, *more], capsys)


def test_a_prompt_too_long_is_named(capsys: Capture, flags: list[str], tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"id": "novel", "prompt": 300 * "x"}))
    assert run_command([*flags, "--prompts", str(long), "--methods", "plain"]) == 2
    assert "prompt novel: the prompt has" in capsys.readouterr().err
