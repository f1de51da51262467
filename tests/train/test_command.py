"""`train-heads` from answers to a folder of heads that decodes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import typer

from entmtp.cli.train_heads import run
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import BadInput
from entmtp.heads import load_heads, read_static_trees
from entmtp.scheduler import StaticPolicy
from entmtp.target.load import load_target
from entmtp.train.config import TrainConfig
from fixtures import tiny_model
from training_rows import ring_rows


def command(arguments: list[str]) -> None:
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(run)
    app(arguments, standalone_mode=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(vocab_size=12).save_pretrained(folder)
    return folder


def flags(model: Path, folder: Path, *more: str) -> list[str]:
    own = ["--model", str(model), "--work", str(folder / "work"), "--out", str(folder / "heads")]
    sizes = ["--draft-vocab-size", "10", "--epochs", "2", "--validation-share", "0.2"]
    return [*own, *sizes, "--num-layers", "1", "--warmup-steps", "1", *more]


@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++"])
def test_answers_become_heads(
    kind: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = tmp_path / "answers.jsonl"
    rows = [
        {"id": row.id, "prompt_ids": row.prompt_ids, "answer_ids": row.answer_ids}
        for row in ring_rows(12, 24)
    ]
    # A byte-order mark, CRLF and a blank line are nobody's fault.
    text = "\r\n\r\n".join(json.dumps(row) for row in rows)
    answers.write_text("\ufeff" + text, encoding="utf-8")
    with pytest.warns(UserWarning, match="only 24 rows"):
        command(flags(model, tmp_path, "--kind", kind, "--answers", str(answers), "--json"))
    report = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert report["num_train_rows"] + report["num_validation_rows"] == 24
    assert report["recipe"]["kind"] == kind
    names = sorted(path.name for path in (tmp_path / "heads").iterdir())
    assert names == ["README.md", "heads.json", "heads.safetensors", "training.png", "trees.json"]
    trees = read_static_trees(tmp_path / "heads")
    assert [entry.tree.num_draft_tokens for entry in trees][:4] == [1, 2, 3, 4]
    target = load_target(str(model), dtype="float32", self_check=False)
    params = GenerationParams(max_tokens=20)
    plain = Engine(target).generate([1, 2, 3], params)
    heads = load_heads(tmp_path / "heads", target)
    drafted = Engine(target, heads, StaticPolicy(trees[3].tree)).generate([1, 2, 3], params)
    assert drafted.token_ids == plain.token_ids
    (tmp_path / "heads" / "trees.json").unlink()
    command(flags(model, tmp_path, "--features", str(tmp_path / "work/features"), "--trees-only"))
    assert len(read_static_trees(tmp_path / "heads")) == len(trees)


def test_T04_a_broken_line_is_named(model: Path, tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    good = json.dumps({"prompt_ids": [1, 2], "answer_ids": [3, 4, 5]})
    for line, words in (
        ("{", r"answers.jsonl:3: not a JSON object"),
        ("[1]", r"answers.jsonl:3: a JSON object was expected, got list"),
        ('{"prompt_ids": [1]}', r"answers.jsonl:3: answer_ids must be a list of token ids"),
        ('{"prompt_ids": [1, "2"]}', r"answers.jsonl:3: prompt_ids must be"),
    ):
        answers.write_text(f"{good}\n\n{line}\n")
        with pytest.raises(BadInput, match=words):
            command(flags(model, tmp_path, "--answers", str(answers)))
    answers.write_text(json.dumps({"prompt_ids": [1, 99], "answer_ids": [3, 4]}))
    with pytest.raises(BadInput, match=r"holds the id 99, the vocabulary has 12"):
        command(flags(model, tmp_path, "--answers", str(answers)))


def test_T05_nothing_to_train_on_is_one_line(model: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="pass --prompts, --answers or --features"):
        command(flags(model, tmp_path))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    with pytest.raises(BadInput, match="0 of 0 tokens are trained"):
        command(flags(model, tmp_path, "--answers", str(empty)))
    with pytest.raises(BadInput, match="cannot read answers"):
        command(flags(model, tmp_path, "--answers", str(tmp_path / "missing.jsonl")))
    assert not (tmp_path / "heads").exists()


def test_every_setting_is_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    command(["--help"])
    shown = capsys.readouterr().out
    for field in dataclasses.fields(TrainConfig):
        assert f"--{field.name.replace('_', '-')}" in shown
