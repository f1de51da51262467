"""`train-heads` from answers to a folder of heads that decodes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import load_file

from entmtp.cli.train_heads import run
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import ArtefactError, BadInput, HeadsError
from entmtp.heads import describe_heads, load_heads, read_static_trees
from entmtp.scheduler import StaticPolicy
from entmtp.target.load import load_target
from entmtp.train.config import TrainConfig
from saved import save_bare_model
from training_rows import ring_rows


def command(arguments: list[str]) -> None:
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(arguments, standalone_mode=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bare_model(tmp_path_factory.mktemp("model"), vocab_size=12)


def ring_answers() -> str:
    rows = [
        {"id": row.id, "prompt_ids": row.prompt_ids, "answer_ids": row.answer_ids}
        for row in ring_rows(12, 24)
    ]
    return "\n".join(json.dumps(row) for row in rows)


def flags(model: Path, folder: Path, *more: str) -> list[str]:
    own = ["--model", str(model), "--work", str(folder / "work"), "--out", str(folder / "heads")]
    sizes = ["--draft-vocab-size", "10", "--epochs", "2", "--validation-share", "0.2"]
    return [*own, *sizes, "--num-layers", "1", "--warmup-steps", "1", *more]


@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++"])
def test_answers_become_heads(
    kind: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = tmp_path / "answers.jsonl"
    # A byte-order mark, CRLF and a blank line are nobody's fault.
    text = ring_answers().replace("\n", "\r\n\r\n")
    answers.write_text("\ufeff" + text, encoding="utf-8")
    command(flags(model, tmp_path, "--kind", kind, "--answers", str(answers), "--json"))
    shown = capsys.readouterr()
    assert [
        line
        for line in shown.err.splitlines()
        if line.startswith("note: only 24 rows with 24 different")
    ]
    report = json.loads(shown.out.strip().splitlines()[-1])
    assert report["num_train_rows"] + report["num_validation_rows"] == 24
    assert report["recipe"]["kind"] == kind
    names = sorted(path.name for path in (tmp_path / "heads").iterdir())
    assert names == [
        "README.md",
        "config.json",
        "heads.json",
        "heads.safetensors",
        "training.png",
        "trees.json",
    ]
    trees = read_static_trees(tmp_path / "heads")
    assert [entry.tree.num_nodes for entry in trees][:4] == [2, 3, 4, 5]
    target = load_target(str(model), dtype="float32", self_check=False)
    params = GenerationParams(max_tokens=20)
    plain = Engine(target).generate([1, 2, 3], params)
    heads = load_heads(tmp_path / "heads", target)
    drafted = Engine(target, heads, StaticPolicy(trees[3].tree)).generate([1, 2, 3], params)
    assert drafted.token_ids == plain.token_ids


def test_trees_only_makes_trees_and_card_again_and_never_of_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(ring_answers())
    share = ("--validation-share", "0.4")
    command(flags(model, tmp_path, "--kind", "medusa", "--answers", str(answers), *share))
    heads = tmp_path / "heads"
    before = {name: (heads / name).read_bytes() for name in ("trees.json", "README.md")}
    empty = tmp_path / "empty"
    with pytest.raises(BadInput, match="0 of 0 tokens"):
        command(flags(model, tmp_path, "--trees-only", "--features", str(empty)))
    assert (heads / "trees.json").read_bytes() == before["trees.json"]
    for name in before:
        (heads / name).unlink()
    capsys.readouterr()
    # The split is the one of the training, not that of the flags' defaults.
    command(flags(model, tmp_path, "--trees-only", "--json"))
    assert {name: (heads / name).read_bytes() for name in before} == before
    report = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [entry["num_nodes"] for entry in report["trees"]][:4] == [2, 3, 4, 5]
    with pytest.raises(HeadsError, match="no such file or folder"):
        command(flags(model, tmp_path, "--trees-only", "--out", str(empty)))
    # What the card is made of may be spoilt.
    description = json.loads((heads / "heads.json").read_text())
    for name, value in (("num_train_rows", "many"), ("validation", {"top_shares": {}})):
        spoilt = description | {"provenance": description["provenance"] | {name: value}}
        (heads / "heads.json").write_text(json.dumps(spoilt))
        with pytest.raises(ArtefactError, match="do not say how they were trained"):
            command(flags(model, tmp_path, "--trees-only"))
        assert (heads / "README.md").read_bytes() == before["README.md"]


def test_training_starts_from_heads_of_the_same_sizes(model: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(ring_answers())
    first = flags(model, tmp_path / "first", "--kind", "medusa", "--answers", str(answers))
    command(first)
    given = tmp_path / "first/heads"
    more = ("--kind", "medusa", "--answers", str(answers), "--start-from", str(given))
    # So low a rate moves nothing that 16 bits can hold.
    command(flags(model, tmp_path / "more", *more, "--lr", "1e-12", "--weight-decay", "0"))
    # What heads began with is told of, and what those began with counts.
    one = describe_heads(given).provenance
    assert "begun_with" not in one
    names = ("num_train_rows", "num_train_tokens")
    further = ("--kind", "medusa", "--answers", str(answers), "--start-from")
    command(flags(model, tmp_path / "again", *further, str(tmp_path / "more/heads")))
    for times, name in ((1, "more"), (2, "again")):
        made = describe_heads(tmp_path / name / "heads").provenance
        assert made["begun_with"] == {count: times * one[count] for count in names}
        card = (tmp_path / name / "heads/README.md").read_text()
        assert f"had seen {times * one['num_train_rows']} answers" in card
    weights = [load_file(tmp_path / name / "heads/heads.safetensors") for name in ("first", "more")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(BadInput, match=r"other sizes \(num_draft_heads 4, not 3\)"):
        command(flags(model, tmp_path / "other", *more, "--num-draft-heads", "3"))
    with pytest.raises(HeadsError, match="no such file or folder"):
        command([*first, "--start-from", str(tmp_path / "nowhere")])


@pytest.mark.parametrize(
    ("flag", "value", "words"),
    [
        ("--validate-every", "0", "--validate-every is 0; expected 1 or more"),
        ("--judge-nodes", "1", "--judge-nodes is 1; expected 2 or more"),
        ("--epochs", "nan", "--epochs is nan; expected a number of 0 or more"),
        ("--dropout", "1", "--dropout is 1.0; expected a share from 0 to below 1"),
        ("--validation-share", "1", "--validation-share is 1.0; expected a share"),
        ("--warmup-steps", "-1", "--warmup-steps is -1; expected 0 or more"),
        ("--kind", "eagle", "--kind is eagle; expected one of medusa, hydra, hydra"),
        ("--prefix-start", "zero", "--prefix-start is zero; expected one of target, random"),
    ],
)
def test_a_wrong_setting_is_refused_before_the_model_is_loaded(
    flag: str, value: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words):
        command(flags(tmp_path / "no model", tmp_path, flag, value))


def test_an_answer_of_another_model_is_refused(model: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    row = {"prompt_ids": [1, 2], "answer_ids": [3, 4, 5], "model": "abc"}
    answers.write_text(json.dumps(row))
    with pytest.raises(BadInput, match=r"answers.jsonl:1: an answer of the model abc, this is"):
        command(flags(model, tmp_path, "--answers", str(answers)))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt_ids": [1]}', "`answer_ids`: expected a list of token ids, got null"),
        ('{"prompt_ids": [1, "2"]}', "`prompt_ids`: expected a list of token ids, got a list with"),
        ('{"prompt_ids": [1, 99], "answer_ids": []}', "holds the id 99, the vocabulary has 12"),
        (
            '{"prompt_ids": [1], "answer_ids": [2], "temperature": "0"}',
            "expected a number, got text",
        ),
    ],
)
def test_T04_a_line_that_is_no_answer_is_named(
    line: str, words: str, model: Path, tmp_path: Path
) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(f"{json.dumps({'prompt_ids': [1], 'answer_ids': [3, 4]})}\n\n{line}\n")
    with pytest.raises(BadInput, match=rf"answers.jsonl:3: .*{re.escape(words)}"):
        command(flags(model, tmp_path, "--answers", str(answers)))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((), "pass --prompts, --answers or --features"),
        (
            ("--answers", "a", "--prompts", "packaged"),
            "--prompts and --answers are given; pass one",
        ),
        (("--prompts", "packaged", "--num-tokens", "0"), "--num-tokens is 0; expected 1 or more"),
        (("--features", "nowhere"), "--features nowhere: expected a folder"),
        (("--prompts", "packaged", "--work", __file__), "is a file; expected a folder"),
    ],
)
def test_flags_that_contradict_are_refused_before_the_model_is_loaded(
    more: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=words):
        command(flags(tmp_path / "no model", tmp_path, *more))


@pytest.mark.parametrize("name", ["--work", "--out"])
def test_a_folder_that_may_not_be_written_is_said_before_the_hours(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != locked)
    with pytest.raises(BadInput, match="locked may not be written to; choose another folder"):
        command(flags(tmp_path / "no model", tmp_path, name, str(locked / "a" / "b")))


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    command(["--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(TrainConfig):
        assert f"--{field.name.replace('_', '-')}" in shown
