"""Cases T01, T03, M02, M03 and S19 of known faults, as `train-heads` meets them.

T02 stands in `tests/train/test_labels.py`, T04 and T05 in `test_training_files.py`, T08 in
`test_training_resumed.py`.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from entmtp.cli.app import run_command
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import load_heads, read_static_trees
from entmtp.scheduler import StaticPolicy
from entmtp.target.load import load_target
from entmtp.train.metrics import read_metrics
from saved import CHAT_TEMPLATE, save_bare_model, save_model
from training_commands import Capture, command, conversation, left_behind, refused, talks, write


@pytest.fixture(scope="module")
def bare_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("bare"))


# T01


def test_T01_rows_without_an_answer_stop_the_run(
    model: Path, tmp_path: Path, capsys: Capture
) -> None:
    rows = [conversation("only the user"), {"messages": [{"role": "user", "content": "speaks"}]}]
    file = write(tmp_path / "rows.jsonl", rows)
    line = refused(command(model, tmp_path, "--answers", str(file)), capsys)
    assert re.search(r"0 of [1-9]\d* tokens are trained: none of 2 rows", line)
    assert left_behind(tmp_path) == []


def test_T01_a_template_that_hides_where_answers_begin_stops_the_run(
    tmp_path: Path, capsys: Capture
) -> None:
    # The generation prompt is none of the conversation's own text.
    template = CHAT_TEMPLATE.removesuffix("a:") + "{% if add_generation_prompt %}<now>{% endif %}"
    model = save_model(tmp_path / "model", chat_template=template)
    file = write(tmp_path / "rows.jsonl", talks(3))
    line = refused(command(model, tmp_path, "--answers", str(file)), capsys)
    assert "0 of 66 tokens are trained: none of 3 rows" in line
    assert "chat template marks where an answer begins" in line
    assert not (tmp_path / "work").exists()


def test_T01_useless_rows_are_counted_and_the_share_is_printed(
    model: Path, tmp_path: Path, capsys: Capture
) -> None:
    empty = {"prompt_ids": [65], "answer_ids": [66]}
    rows = [*talks(9), conversation("only the user"), empty]
    file = write(tmp_path / "rows.jsonl", rows)
    epochs = ("--epochs", "1")
    assert run_command(command(model, tmp_path, "--answers", str(file), *epochs)) == 0
    err = capsys.readouterr().err
    assert re.search(r"\d+ of \d+ tokens are trained \(\d\d% masked\); 2 of 11 rows left out", err)


@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++"])
def test_T01_rows_shorter_than_the_heads_are_many_train_the_first_heads(
    kind: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    rows = [{"prompt_ids": [65, i], "answer_ids": [66, 67]} for i in range(8)]
    file = write(tmp_path / "rows.jsonl", rows)
    more = ("--answers", str(file), "--epochs", "2", "--num-draft-heads", "4")
    assert run_command(command(model, tmp_path, *more, kind=kind)) == 0
    assert "of 4 heads only 1 have something to learn" in capsys.readouterr().err
    entries = read_metrics(tmp_path / "work" / f"run-{kind}" / "metrics.jsonl")
    losses = [entry["head_losses"] for entry in entries if "loss" in entry]
    assert losses
    assert all(math.isfinite(heads[0]) and heads[3] is None for heads in losses)


def test_T01_sixteen_bits_and_a_high_rate_stay_finite(model: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.jsonl", talks(12))
    more = ("--answers", str(file), "--dtype", "bfloat16", "--lr", "1e-3", "--epochs", "2")
    assert run_command(command(model, tmp_path, *more, kind="hydra++")) == 0
    entries = read_metrics(tmp_path / "work/run-hydra++/metrics.jsonl")
    assert all(math.isfinite(entry["loss"]) for entry in entries if "loss" in entry)
    weights = load_file(tmp_path / "heads/heads.safetensors")
    assert all(bool(value.isfinite().all()) for value in weights.values())


def test_T01_a_loss_that_is_not_finite_stops_with_the_step(
    model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path / "rows.jsonl", talks(12))
    more = ("--answers", str(file), "--lr", "1e30", "--epochs", "9", "--checkpoint-every", "1")
    line = refused(command(model, tmp_path, *more), capsys)
    assert re.search(r"the (loss|gradient) is (nan|inf) at step \d+; lower --lr", line)
    assert not (tmp_path / "heads").exists()


# T03


@pytest.mark.parametrize("num_rows", [1, 3, 20])
def test_T03_few_rows_are_said_and_make_valid_heads(
    num_rows: int, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path / "rows.jsonl", talks(num_rows))
    assert run_command(command(model, tmp_path, "--answers", str(file), "--epochs", "1")) == 0
    err = capsys.readouterr().err
    assert f"only {num_rows} rows with {num_rows} different prompts to train on" in err
    assert ("no row is held out" in err) == (num_rows == 1)
    target = load_target(str(model), dtype="float32", self_check=False)
    trees = read_static_trees(tmp_path / "heads")
    assert trees
    policy = StaticPolicy(trees[-1].tree)
    drafted = Engine(target, load_heads(tmp_path / "heads", target), policy)
    params = GenerationParams(max_tokens=12)
    assert (
        drafted.generate("hello", params).token_ids
        == Engine(target).generate("hello", params).token_ids
    )


# M02


@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++"])
@pytest.mark.parametrize("arch", ["qwen3", "gpt2"])
def test_M02_heads_of_another_architecture_draft_what_it_would_have_said(
    arch: str, kind: str, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    if arch == "gpt2":
        sizes = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 96}
        ends = {"bos_token_id": None, "eos_token_id": None}
        GPT2LMHeadModel(GPT2Config(**sizes, **ends)).save_pretrained(folder)
    else:
        save_bare_model(folder, arch=arch, vocab_size=64, max_length=96)
    rows = [{"prompt_ids": [i, 1], "answer_ids": list(range(i, i + 20))} for i in range(12)]
    rows.append({"prompt_ids": [5] * 90, "answer_ids": [6] * 30})  # beyond the context
    file = write(tmp_path / "rows.jsonl", rows)
    arguments = command(folder, tmp_path, "--answers", str(file), "--epochs", "2", kind=kind)
    assert run_command(arguments) == 0
    target = load_target(str(folder), dtype="float32", self_check=False)
    heads = load_heads(tmp_path / "heads", target)
    policy = StaticPolicy(read_static_trees(tmp_path / "heads")[-1].tree)
    params = GenerationParams(max_tokens=20)
    drafted = Engine(target, heads, policy).generate([1, 2, 3], params)
    assert drafted.token_ids == Engine(target).generate([1, 2, 3], params).token_ids


# M03


def test_M03_heads_of_a_tied_model_start_as_its_embedding(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", chat_template=CHAT_TEMPLATE, tie_word_embeddings=True)
    assert not [name for name in load_file(model / "model.safetensors") if "lm_head" in name]
    file = write(tmp_path / "rows.jsonl", talks(4))
    more = ("--answers", str(file), "--epochs", "0", "--output", "own", "--draft-vocab-size", "0")
    assert run_command(command(model, tmp_path, *more)) == 0
    target = load_target(str(model), dtype="float32", self_check=False)
    heads = load_heads(tmp_path / "heads", target)
    embedding = target.embedding_weight.bfloat16().float()  # as heads are stored
    for head in range(2):
        assert torch.equal(heads.output(head)[0], embedding)
    params = GenerationParams(max_tokens=12)
    policy = StaticPolicy(read_static_trees(tmp_path / "heads")[-1].tree)
    drafted = Engine(target, heads, policy).generate("hello", params)
    assert drafted.token_ids == Engine(target).generate("hello", params).token_ids


# S19


def test_S19_without_a_chat_template_conversations_are_refused(
    bare_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path / "rows.jsonl", talks(4))
    for flag in ("--answers", "--prompts"):
        line = refused(command(bare_model, tmp_path, flag, str(file)), capsys)
        assert "no chat template" in line
        assert "--chat-template" in line
        assert left_behind(tmp_path) == []


def test_S19_without_a_chat_template_bare_prompts_are_continued(
    bare_model: Path, prompts: Path, tmp_path: Path
) -> None:
    more = ("--prompts", str(prompts), "--num-tokens", "40", "--max-tokens", "8", "--epochs", "1")
    assert run_command(command(bare_model, tmp_path, *more)) == 0
    first = json.loads((tmp_path / "work/answers.jsonl").read_text().splitlines()[0])
    assert bytes(first["prompt_ids"]).startswith(b"question ")


def test_S19_a_template_may_be_given_and_a_broken_one_is_named(
    bare_model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = write(tmp_path / "rows.jsonl", talks(4))
    template = tmp_path / "chat.jinja"
    more = ("--answers", str(file), "--epochs", "1", "--chat-template", str(template))
    assert "No such file" in refused(command(bare_model, tmp_path, *more), capsys)
    template.write_text("{% for m in messages %}\n{{ m.content }}\n{% endif %}")
    line = refused(command(bare_model, tmp_path, *more), capsys)
    assert "line 3 of the chat template is broken: " in line
    template.write_text(CHAT_TEMPLATE)
    assert run_command(command(bare_model, tmp_path, *more)) == 0
