"""`entmtp bench` from flags to figures, on a tiny model in float32."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bank_policies import BANK, bank_for
from entmtp.bench import best_tree, identity
from entmtp.cli import bench
from entmtp.cli.app import run_command
from entmtp.cli.options import LoadOptions
from entmtp.cli.session import open_heads, open_target
from entmtp.engine.made_for import made_for
from entmtp.scheduler import MadeFor, write_bank
from refusals import one_line

Capture = pytest.CaptureFixture[str]
WITHOUT_A_BANK = ["plain", "medusa-default", "medusa-best", "hydra-default", "hydra-best"]
OF_A_BANK = ["entmtp-ladder", "entmtp-tau", "entmtp-throughput", "entmtp-per-step"]
PROMISED = {
    "name",
    "tokens_per_second",
    "speedup",
    "speedup_low",
    "speedup_high",
    "mean_acceptance_length",
    "num_identical",
    "num_prompts",
    "draft_milliseconds",
    "verify_milliseconds",
    "host_milliseconds",
    "perplexity",
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the times here."""
    monkeypatch.setattr(best_tree, "NUM_ROUNDS", 1)


@pytest.fixture(scope="module")
def made(model_folder: Path, hydra_folder: Path, medusa_folder: Path) -> dict[str, MadeFor]:
    target = open_target(LoadOptions(str(model_folder), "float32"))
    folders = {"hydra": hydra_folder, "medusa": medusa_folder}
    return {name: made_for(target, open_heads(each, target)) for name, each in folders.items()}


@pytest.fixture
def banks(tmp_path: Path, made: dict[str, MadeFor]) -> dict[str, str]:
    for name, each in made.items():
        write_bank(bank_for(each), tmp_path / f"{name}.json")
    return {name: str(tmp_path / f"{name}.json") for name in made}


@pytest.fixture
def flags(model_folder: Path, medusa_folder: Path, hydra_folder: Path, tmp_path: Path) -> list[str]:
    """Three short prompts of two sources."""
    prompts = tmp_path / "prompts.jsonl"
    names = ("HumanEval/3", "gsm8k-test/2", "HumanEval/5")
    prompts.write_text("\n".join(json.dumps({"id": name, "prompt": name[-3:]}) for name in names))
    folders = {"model": model_folder, "medusa": medusa_folder, "hydra": hydra_folder}
    return [
        "bench",
        *(word for name, folder in folders.items() for word in (f"--{name}", str(folder))),
        *("--prompts", str(prompts), "--max-tokens", "10", "--dtype", "float32", "--json"),
    ]


def figures(capsys: Capture, flags: list[str]) -> dict[str, Any]:
    assert run_command(flags) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


@pytest.mark.parametrize("sampling", [[], ["--temperature", "0.9", "--top-p", "0.8"]])
def test_every_method_says_what_plain_says(
    capsys: Capture, flags: list[str], banks: dict[str, str], tmp_path: Path, sampling: list[str]
) -> None:
    out = tmp_path / "out.json"
    report = figures(capsys, [*flags, *sampling, "--bank-hydra", banks["hydra"], "--out", str(out)])
    assert json.loads(out.read_text()) == report
    assert [method["name"] for method in report["methods"]] == WITHOUT_A_BANK + OF_A_BANK
    for method in report["methods"]:
        assert method.keys() >= PROMISED
        assert method["num_identical"] == method["num_prompts"] == 3
        assert method["perplexity"] == report["methods"][0]["perplexity"] > 1
        assert method["perplexity_ratio"] == method["perplexity_ratio_low"] == 1
        ratio = method["against_hydra_best"]
        assert ratio["ratio_low"] <= ratio["ratio"] <= ratio["ratio_high"]
    assert [source["name"] for source in report["sources"]] == ["humaneval", "gsm8k"]
    assert [source["methods"][-1]["num_prompts"] for source in report["sources"]] == [2, 1]
    assert report["settings"]["left_out"] == []
    assert report["settings"]["seed"] == 0
    # The bank's best static tree, and one that was timed.
    best = report["best_trees"]["hydra"]
    assert best == {
        "num_nodes": BANK[2].num_nodes,
        "paths": [list(path) for path in BANK[2].paths[1:]],
        "bank": banks["hydra"],
    }
    assert report["best_trees"]["medusa"]["candidates"]
    assert report["methods"][4]["num_nodes"] == BANK[2].num_nodes


def test_methods_without_a_bank_are_left_out_aloud(capsys: Capture, flags: list[str]) -> None:
    assert run_command(flags) == 0
    out, err = capsys.readouterr()
    assert "note: left out without a bank of trees (--bank-hydra FILE): entmtp-ladder, " in err
    report = json.loads(out.splitlines()[-1])
    assert [method["name"] for method in report["methods"]] == WITHOUT_A_BANK
    assert report["settings"]["left_out"] == OF_A_BANK
    for words in ("humaneval", "gsm8k", "over best", "perplexity", "verify ms"):
        assert words in out


def test_the_bank_of_other_heads(capsys: Capture, flags: list[str], banks: dict[str, str]) -> None:
    more = ["--methods", "entmtp-ladder,medusa-best", "--heads", "medusa"]
    report = figures(capsys, [*flags, *more, "--bank-medusa", banks["medusa"]])
    assert [method["name"] for method in report["methods"]] == [
        "plain",
        "entmtp-ladder",
        "medusa-best",
    ]
    assert report["settings"]["heads_of_entmtp"] == "medusa"
    assert report["methods"][1]["against_hydra_best"] is None
    assert report["best_trees"].keys() == {"medusa"}


def test_a_demo_with_a_bank_shows_it(
    capsys: Capture, flags: list[str], banks: dict[str, str]
) -> None:
    report = figures(capsys, ["demo", *flags[1:], "--bank-hydra", banks["hydra"]])
    names = [method["name"] for method in report["methods"]]
    assert names == ["plain", "medusa-best", "hydra-best", "entmtp-tau"]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--methods", "nonsense"], "no method 'nonsense'; known are plain, medusa-default, "),
        (
            ["--methods", "entmtp-tau"],
            "entmtp-tau needs a bank of trees for the hydra heads; pass --bank-hydra FILE",
        ),
        (
            ["--methods", "entmtp-tau", "--heads", "medusa"],
            "entmtp-tau needs a bank of trees for the medusa heads; pass --bank-medusa FILE",
        ),
        (["--bank-hydra", "b"], "there is no bank b; make one with `entmtp calibrate`"),
        (
            ["--methods", "hydra-best", "--bank-medusa", "b"],
            "--bank-medusa b serves none of the methods plain, hydra-best; leave it out",
        ),
        (["--out", "nowhere/out.json"], "--out nowhere/out.json: there is no folder"),
        (["--hydra", "nowhere"], "no draft heads at nowhere"),
        (["--limit", "0"], "a limit of 0 prompts leaves nothing"),
    ],
)
def test_wrong_use_is_one_line_and_2(
    more: list[str], said: str, capsys: Capture, flags: list[str]
) -> None:
    assert said in one_line([*flags, *more], capsys)


def test_T07_a_bank_of_something_else_is_refused_by_name(
    capsys: Capture, flags: list[str], made: dict[str, MadeFor], tmp_path: Path
) -> None:
    bank, out = tmp_path / "bank.json", tmp_path / "out.json"
    write_bank(bank_for(replace(made["hydra"], machine="another")), bank)
    err = one_line([*flags, "--bank-hydra", str(bank), "--out", str(out)], capsys)
    assert f"{bank} was made for machine another, not " in err
    assert not out.exists()


def test_interrupted_is_130_and_leaves_nothing(
    capsys: Capture, flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "answer_perplexities", interrupt)
    out = tmp_path / "out.json"
    assert run_command([*flags, "--methods", "hydra-default", "--out", str(out)]) == 130
    assert capsys.readouterr().out == ""
    assert not list(tmp_path.glob("*out.json*"))


def test_a_difference_in_float32_is_1_and_names_the_prompt(
    capsys: Capture, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    differ = identity.first_difference
    monkeypatch.setattr(
        identity, "first_difference", lambda one, other: differ(one, [*other[:3], -1])
    )
    assert run_command([*flags, "--methods", "hydra-default"]) == 1
    out, err = capsys.readouterr()
    assert "hydra-default differs from plain on prompt HumanEval/3 at token 3" in err
    sources = json.loads(out.splitlines()[-1])["sources"]
    assert [source["methods"][1]["num_identical"] for source in sources] == [0, 0]


def test_P09_a_bench_of_nothing_is_null(capsys: Capture, flags: list[str]) -> None:
    more = ["--max-tokens", "0", "--methods", "hydra-best"]
    report = figures(capsys, [*flags, *more])
    for method in report["methods"]:
        for name in ("tokens_per_second", "speedup", "host_milliseconds", "perplexity"):
            assert method[name] is None
        assert method["against_hydra_best"]["ratio"] is None
