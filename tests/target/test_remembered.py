"""A checkpoint that ran on `native` before: the next start is the same, and reads no model."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from entmtp.data import Message
from entmtp.data.stored_tokenizer import StoredTokenizer
from entmtp.engine import Engine, GenerationParams
from entmtp.engine.prompt import encode
from entmtp.target import TargetModel, load
from entmtp.target.load import load_target
from entmtp.target.runtimes.native import remembered
from entmtp.target.runtimes.native import target as target_module
from entmtp.target.runtimes.native.remembered import RememberedModel
from fixtures import tiny_model
from runtimes import needs_native
from saved import CHAT_TEMPLATE, save_model

pytestmark = needs_native
PROMPT = [3, 1, 4, 1, 5]
LENGTH = 24
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where everything is remembered, except the kernels."""
    folder = tmp_path / "cache"
    (folder / "checks").mkdir(parents=True)
    monkeypatch.setattr(remembered, "cache_dir", lambda: folder)
    monkeypatch.setattr(target_module, "kernels_folder", lambda: folder / "checks")
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checkpoints that were read by `transformers`."""
    read, seen = load.read_checkpoint, []

    def watched(where: str, dtype: torch.dtype) -> tuple[Any, Any]:
        seen.append(where)
        return read(where, dtype)

    monkeypatch.setattr(load, "read_checkpoint", watched)
    return seen


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(tmp_path / "model")


def saved(folder: Path, arch: str = "llama", **changes: Any) -> Path:
    tiny_model(arch, vocab_size=40, **changes).save_pretrained(folder)
    return folder


def started(folder: Path) -> TargetModel:
    return load_target(str(folder), runtime="native")


def answer(target: TargetModel) -> tuple[int, ...]:
    return tuple(Engine(target).generate(PROMPT, GenerationParams(LENGTH)).token_ids)


def logits(target: TargetModel) -> torch.Tensor:
    cache = target.new_cache(1, len(PROMPT))
    (hidden,) = target.prefill(torch.tensor([PROMPT]), cache)
    return target.logits(hidden[:, -1])


@pytest.mark.parametrize(
    ("arch", "changes"),
    [
        ("llama", {}),
        ("llama", {"tie_word_embeddings": True, "eos_token_id": [2, 3]}),
        ("llama", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 0.1}),
        ("llama", {"rope_parameters": YARN}),
        ("qwen2", {}),
        ("qwen3", {}),
    ],
)
def test_the_next_start_is_the_same_and_reads_no_model(
    arch: str, changes: dict[str, Any], tmp_path: Path, reads: list[str]
) -> None:
    folder = saved(tmp_path / "model", arch, **changes)
    first, second = started(folder), started(folder)
    assert reads == [str(folder)]
    assert isinstance(second.unmodified, RememberedModel)
    assert torch.equal(logits(first), logits(second))
    assert answer(first) == answer(second)
    for name in (
        *("fingerprint", "sketch", "eos_ids", "max_length", "layout", "architecture", "dtype"),
        *("device", "name", "hidden_size", "vocab_size", "num_layers", "number_format"),
        *("shipped_attention", "check_mark"),
    ):
        assert getattr(first, name) == getattr(second, name), name
    for name in ("embedding_weight", "output_weight"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert first.unmodified.config_json == second.unmodified.config_json
    assert reads == [str(folder)]


def test_the_model_is_read_once_something_needs_it(folder: Path, reads: list[str]) -> None:
    started(folder)
    target = started(folder)
    reads.clear()
    assert target.config.hidden_size == target.hidden_size
    weights = target.transformers_model.state_dict()
    assert torch.equal(weights["lm_head.weight"], target.output_weight)
    assert reads == [str(folder)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_only_a_start_that_ends_on_native_is_remembered(
    dtype: str, folder: Path, kept: Path, reads: list[str]
) -> None:
    for _ in range(2):
        load_target(str(folder), dtype, runtime="eager")
    load_target(str(folder), runtime="native", self_check=False)
    assert len(reads) == 3
    assert not list(kept.glob("known-*"))


def other_weights(folder: Path, _: pytest.MonkeyPatch) -> None:
    saved(folder, seed=1)


def other_config(folder: Path, _: pytest.MonkeyPatch) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}))


def other_code(_: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(remembered, "code_digest", lambda: "other code")


@pytest.mark.parametrize("change", [other_weights, other_config, other_code])
def test_what_has_changed_is_read_anew(
    change: Any, folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logits(started(folder))
    change(folder, monkeypatch)
    after, again = logits(started(folder)), logits(started(folder))
    assert len(reads) == 2
    assert torch.equal(before, after) == (change is other_code)
    assert torch.equal(after, again)


def test_what_changes_while_the_model_is_read_is_not_mistaken_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = load.read_checkpoint

    def changed_behind_it(where: str, dtype: torch.dtype) -> tuple[Any, Any]:
        model = read(where, dtype)
        other_config(folder, monkeypatch)
        return model

    with monkeypatch.context() as patch:
        patch.setattr(load, "read_checkpoint", changed_behind_it)
        before = logits(started(folder))
    after = logits(started(folder))
    assert not torch.equal(before, after)
    assert torch.equal(after, logits(started(folder)))


@pytest.mark.parametrize("wrong", ["0" * 40, "{}", '{"layout": 1}'])
def test_a_file_that_is_broken_is_made_anew_aloud(
    wrong: str, folder: Path, kept: Path, reads: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    expected = answer(started(folder))
    (path,) = kept.glob("known-*/facts.json")
    size = path.stat().st_size
    text = wrong.ljust(size - 66)  # of the same size, so that only its words are wrong
    path.write_text(f"{remembered._digest(text)}\n{text}\n")
    assert path.stat().st_size == size
    with caplog.at_level(logging.WARNING):
        assert answer(started(folder)) == expected
    (said,) = caplog.messages
    assert f"what was remembered of {folder} cannot be used" in said
    assert len(reads) == 2
    started(folder)
    assert len(reads) == 2


def test_the_tokenizer_is_remembered_too(
    tmp_path: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_model(tmp_path / "model", chat_template=CHAT_TEMPLATE)
    first, second = started(folder), started(folder)
    assert isinstance(second.tokenizer, StoredTokenizer)
    for prompt in ("naïve", [Message("user", "one"), Message("assistant", "two")]):
        assert encode(first, prompt) == encode(second, prompt)
    (path,) = kept.glob("known-*/tokenizer.json")
    path.write_text(path.read_text().replace("<eos>", "<sos>"))
    with caplog.at_level(logging.WARNING):
        third = started(folder)
    assert "the tokenizer's file has changed" in caplog.text
    assert not isinstance(third.tokenizer, StoredTokenizer)
    assert isinstance(started(folder).tokenizer, StoredTokenizer)


def test_a_tokenizer_that_does_more_is_read_as_before(
    tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(tmp_path / "model")
    monkeypatch.setattr(remembered, "described", lambda _: None)
    started(folder)
    target = started(folder)
    assert len(reads) == 1
    assert isinstance(target.tokenizer, PreTrainedTokenizerFast)


def test_a_digit_that_has_changed_is_seen(
    folder: Path, kept: Path, caplog: pytest.LogCaptureFixture
) -> None:
    started(folder)
    (path,) = kept.glob("known-*/facts.json")
    text = path.read_text()
    path.write_text(text.replace('"scaling": 0.25', '"scaling": 0.26'))
    assert path.read_text() != text
    with caplog.at_level(logging.WARNING):
        started(folder)
    assert "its file has changed since it was written" in caplog.text


def test_names_of_their_own_are_not_guessed_at(tmp_path: Path, kept: Path) -> None:
    """A checkpoint of the body's tensors alone, whose names `transformers` completes."""
    model = tiny_model(vocab_size=40, tie_word_embeddings=True)
    model.model.save_pretrained(tmp_path / "model")
    started(tmp_path / "model")
    assert not list(kept.glob("known-*"))


def test_where_nothing_can_be_written_the_start_goes_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(remembered, "cache_dir", lambda: tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        answer(started(folder))
    assert "the next start takes longer" in caplog.text
