"""`entmtp convert` and `entmtp tree convert`; published heads on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entmtp.cli.app import run_command
from entmtp.trees import chain, full, medusa_63, read_tree

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(("layout", "kind"), [("medusa-v1", "medusa"), ("vllm", "medusa")])
def test_heads_there_and_back(
    layout: str,
    kind: str,
    model_folder: Path,
    medusa_folder: Path,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    out, back, model = tmp_path / "out", tmp_path / "back", str(model_folder)
    common = ["--model", model, "--json"]
    heads = str(medusa_folder)
    assert run_command(["convert", "heads", heads, str(out), "--to", layout, *common]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (report["layout"], report["kind"], report["num_draft_heads"]) == (layout, kind, 4)
    assert run_command(["convert", "heads", str(out), str(back), *common]) == 0
    assert sorted(path.name for path in back.iterdir()) == [
        "config.json",
        "heads.json",
        "heads.safetensors",
        "trees.json",
    ]
    texts = []
    for place in (medusa_folder, out, back):
        flags = ["--heads", str(place), "--dtype", "float32", "--max-tokens", "8", "--json"]
        capsys.readouterr()
        assert run_command(["generate", "hello", "--model", model, *flags]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        texts.append((result["token_ids"], result["num_accepted_tokens"], result["method"]))
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{medusa}", "{out}", "--to", "hydra"], "hydra cannot hold these heads: they are medusa"),
        (["{medusa}", "{medusa}"], "is there already; give a new or empty folder"),
        (["{medusa}", "{out}", "--to", "gguf"], "unknown layout 'gguf'; expected one of own"),
        (["{model}", "{out}"], "holds a model, not draft heads; pass it as --model"),
        (["{out}", "{out}"], "no such file or folder"),
    ],
)
def test_M10_wrong_use_is_one_line_and_2(
    arguments: list[str],
    said: str,
    model_folder: Path,
    medusa_folder: Path,
    tmp_path: Path,
    capsys: Capture,
) -> None:
    places = {"medusa": medusa_folder, "model": model_folder, "out": tmp_path / "out"}
    filled = [argument.format(**places) for argument in arguments]
    assert run_command(["convert", "heads", *filled, "--model", str(model_folder)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_M10_heads_and_model_swapped(
    model_folder: Path, medusa_folder: Path, capsys: Capture
) -> None:
    swapped = ["--model", str(medusa_folder), "--heads", str(model_folder)]
    assert run_command(["generate", "x", *swapped]) == 2
    assert "holds a model, not draft heads; pass it as --model" in capsys.readouterr().err
    only_model = ["--model", str(medusa_folder), "--policy", "plain"]
    assert run_command(["generate", "x", *only_model]) == 2
    assert "holds draft heads, not a model; pass it as the heads" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["convert", "tree"], ["tree", "convert"]])
def test_trees_by_either_name(verb: list[str], tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "tree.json"
    assert run_command([*verb, "medusa-63", str(out), "--to", "vllm"]) == 0
    assert read_tree(out) == medusa_63()
    capsys.readouterr()
    assert run_command([*verb, str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == [list(p) for p in medusa_63().paths[1:]]
    assert run_command([*verb, "chain-4", "--to", "eagle"]) == 0
    out_text, err = capsys.readouterr()
    assert json.loads(out_text) == {"topk": 1, "steps": 4, "num_draft_tokens": 5}
    assert err == ""


def test_a_lost_shape_is_said(tmp_path: Path, capsys: Capture) -> None:
    assert run_command(["tree", "convert", "full-2x3", "--to", "eagle"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["num_draft_tokens"] == full(2, 3).num_nodes
    assert "the shape is lost" in err
    (tmp_path / "choices.py").write_text("best = [[0], [0, 0]]\n")
    assert run_command(["tree", "convert", f"{tmp_path / 'choices.py'}:best"]) == 0
    assert json.loads(capsys.readouterr().out) == [list(p) for p in chain(2).paths[1:]]


def test_trees_that_cannot_be_converted(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "tree.json"
    for arguments, said in (
        (["root", str(out), "--to", "eagle"], "no EAGLE tree"),
        (["chain-2", str(out), "--to", "sglang"], "unknown form 'sglang'"),
        (["chain-2", str(tmp_path / "no" / "tree.json")], "cannot write"),
    ):
        assert run_command(["convert", "tree", *arguments]) == 2
        err = capsys.readouterr().err
        assert said in err
        assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
