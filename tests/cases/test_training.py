"""Cases T01 to T05, T08, M03 and S19 of known faults, as `train-heads` meets them.

T02 stands in `tests/train/test_labels.py`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from entmtp.cli.app import run_command
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import load_heads, read_static_trees
from entmtp.scheduler import StaticPolicy
from entmtp.target.load import load_target
from entmtp.train.metrics import read_metrics
from killed_runs import Fault, run_killed, run_small
from saved import CHAT_TEMPLATE, save_model

Capture = pytest.CaptureFixture[str]
SIZES = (
    *("--num-draft-heads", "2", "--num-layers", "1", "--draft-vocab-size", "64"),
    *("--validation-share", "0.2", "--warmup-steps", "2", "--batch-tokens", "60"),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model"), chat_template=CHAT_TEMPLATE)


@pytest.fixture(scope="module")
def bare_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("bare"))


def command(model: Path, folder: Path, *more: str, kind: str = "medusa") -> list[str]:
    places = ["--work", str(folder / "work"), "--out", str(folder / "heads")]
    return ["train-heads", "--model", str(model), *places, "--kind", kind, *SIZES, *more]


def write(path: Path, rows: Sequence[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def conversation(*turns: str) -> dict[str, object]:
    roles = ("human", "gpt")
    return {"conversations": [{"from": roles[i % 2], "value": t} for i, t in enumerate(turns)]}


def talks(num_rows: int, answer: str = "and so on {}") -> list[dict[str, object]]:
    return [conversation(f"ask {i}", answer.format(i)) for i in range(num_rows)]


def refused(arguments: list[str], capsys: Capture) -> str:
    """The one line of a refusal; progress and notes may stand before it."""
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    line = err.strip().splitlines()[-1]
    assert line.startswith("entmtp: ")
    assert "Traceback" not in err
    return line


def left_behind(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".jsonl"]


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


# T04, T05: every command that takes a file reads it in the same way

GOOD = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bcd"}]}'
READERS = ("demo --prompts", "train-heads --prompts", "train-heads --answers")


def reading(reader: str, file: Path, model: Path, folder: Path, *more: str) -> list[str]:
    verb, flag = reader.split()
    if verb == "demo":
        return [verb, "--model", str(model), flag, str(file), "--methods", "plain", *more]
    return command(model, folder, flag, str(file), *more)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"messages": [', "not JSON: Expecting value in column 15; expected a JSON object"),
        (b'{"messages": "a"}', "`messages`: expected a list, got text"),
        (b'{"text": "a"}', "no `prompt`, `turns`, `messages` or `conversations`; it has `text`"),
        (b'{"messages": [{"role": "user", "content": ""}]}', "`messages[0]` is empty"),
        (b'{"messages": [{"role": "user", "content": "caf\xe9"}]}', "not UTF-8 text: byte 0xe9"),
    ],
    ids=["broken", "wrong type", "missing key", "empty text", "Latin-1"],
)
def test_T04_a_bad_line_is_named_by_every_command(
    reader: str, line: bytes, words: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b"\n".join([GOOD, GOOD, line, GOOD]))
    said = refused(reading(reader, file, model, tmp_path), capsys)
    assert said.startswith(f"entmtp: {file}:3: ")
    assert words in said
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("reader", READERS)
def test_T04_bad_lines_may_be_skipped_and_are_counted(
    reader: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(
        b"\xef\xbb\xbf\r\n" + b"\r\n".join([GOOD, b"{", b"", GOOD + b" ", b"[]", GOOD])
    )
    more = {
        "demo --prompts": ("--max-tokens", "2"),
        "train-heads --prompts": ("--num-tokens", "30", "--max-tokens", "8", "--epochs", "1"),
        "train-heads --answers": ("--epochs", "1"),
    }
    arguments = reading(reader, file, model, tmp_path, *more[reader], "--skip-bad-lines")
    assert run_command(arguments) == 0
    assert f"note: 2 lines were skipped, the first: {file}:3: not" in capsys.readouterr().err


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("what", ["0 bytes", "blank lines", "folder", "missing"])
def test_T05_nothing_to_read_is_one_line_and_leaves_nothing(
    reader: str, what: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "rows.jsonl"
    if what == "folder":
        file.mkdir()
    elif what != "missing":
        file.write_bytes(b"" if what == "0 bytes" else b"\n \r\n\n")
    said = refused(reading(reader, file, model, tmp_path), capsys)
    words = {"folder": "Is a directory", "missing": "(No such file|no prompts)"}
    assert re.search(words.get(what, "(holds no prompt|0 of 0 tokens are trained)"), said)
    assert left_behind(tmp_path) == []


# T08

KILLS = {
    "answers": Fault("entmtp.train.answers:_line", 6, "before"),
    "the first shard": Fault("entmtp.train.shards:save_file", 1, "middle"),
    "a later shard": Fault("entmtp.train.shards:save_file", 2, "middle"),
    "the best, not yet the last": Fault("entmtp.train.trainer:save_weights", 1, "behind"),
    "a step": Fault("entmtp.train.trainer:batch_loss", 17, "before"),
    "half a save": Fault("entmtp.train.checkpoint:torch.save", 3, "middle"),
    "a save without its rename": Fault("entmtp.train.checkpoint:torch.save", 1, "behind"),
    "half the heads": Fault("entmtp.heads.format:save_file", 1, "middle"),
    "heads without trees": Fault("entmtp.train.pipeline:write_static_trees", 1, "before"),
}
"""In the order in which a run meets them: each goes on from where the one before died."""


def long_command(model: Path, folder: Path, prompts: Path, *more: str) -> list[str]:
    source = ("--prompts", str(prompts), "--num-tokens", "120", "--max-tokens", "9")
    pace = ("--epochs", "12", "--validate-every", "15", "--checkpoint-every", "7")
    return command(model, folder, *source, *pace, *more, kind="hydra++")


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that a run leaves, but for its checkpoints."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pt"]
    assert not [path for path in files if path.name.startswith(".")], "halves lie about"
    return {str(path.relative_to(folder)): _content(path) for path in files}


def _content(path: Path) -> bytes:
    """Of safetensors the tensors: their metadata stand in no order."""
    if path.suffix != ".safetensors":
        return path.read_bytes()
    return safetensors.torch.save(load_file(path))


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [{"prompt": f"question {i}"} for i in range(8)]
    return write(tmp_path_factory.mktemp("prompts") / "prompts.jsonl", rows)


@pytest.fixture(scope="module")
def whole(model: Path, prompts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_small(long_command(model, folder, prompts)) == 0
    return folder


def test_T08_killed_anywhere_and_again_a_run_ends_with_the_same_files(
    model: Path, prompts: Path, whole: Path, tmp_path: Path
) -> None:
    arguments = long_command(model, tmp_path, prompts)
    for fault in KILLS.values():
        run_killed(arguments, fault)
    assert run_small(arguments) == 0
    expected, found = contents(whole), contents(tmp_path)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
    states = [torch.load(folder / "work/run-hydra++/last.pt") for folder in (whole, tmp_path)]
    assert states[0]["progress"] == states[1]["progress"]
    for name, value in states[0]["module"].items():
        assert torch.equal(states[1]["module"][name], value), name


def test_T08_changed_data_or_settings_are_said_and_made_anew_only_if_asked(
    model: Path, prompts: Path, whole: Path, tmp_path: Path, capsys: Capture
) -> None:
    arguments = long_command(model, tmp_path, prompts)
    assert run_small(arguments) == 0
    before = contents(tmp_path)
    fewer = write(tmp_path / "fewer.jsonl", [{"prompt": f"question {i}"} for i in range(7)])
    for more, words in (
        (("--lr", "0.01"), r"last.pt belongs to .* \(lr 0.002 -> 0.01\).* pass --restart"),
        (("--prompts", str(fewer)), r"answers.jsonl belongs to .*\(num_prompts 8 -> 15, prompts"),
        (("--max-tokens", "8"), r"answers.jsonl belongs to .*\(max_tokens 9 -> 8\)"),
        (("--dtype", "bfloat16"), r"answers.jsonl belongs to .*\(dtype float32 -> bfloat16\)"),
    ):
        assert run_small([*arguments, *more]) == 2
        assert re.search(words, capsys.readouterr().err.strip().splitlines()[-1])
    fewer.unlink()
    assert contents(tmp_path) == before
    assert run_small([*arguments, "--lr", "0.01", "--restart"]) == 0
    after = contents(tmp_path)
    assert after["heads/heads.safetensors"] != before["heads/heads.safetensors"]
    assert after["work/answers.jsonl"] == before["work/answers.jsonl"], "what fits is kept"
    assert run_small([*arguments, "--restart"]) == 0
    assert contents(tmp_path) == contents(whole)


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
