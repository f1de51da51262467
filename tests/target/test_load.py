"""What may be called a model, and what is said about everything else that people pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from entmtp.errors import BadInput, ModelRefused
from entmtp.target import load
from entmtp.target.load import load_target
from runtimes import graphs_in, needs_openvino
from saved import save_bare_model
from tiny_gguf import write_tiny_gguf

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint without a tokenizer."""
    sizes = {"vocab_size": 24, "max_length": 64, "eos_token_id": [3, 5]}
    return save_bare_model(tmp_path / "model", **sizes)


def refusal(spec: str | Path, **options: str) -> str:
    with pytest.raises((BadInput, ModelRefused)) as caught:
        load_target(str(spec), **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float16"])
def test_folder(folder: Path, dtype: str) -> None:
    target = load_target(str(folder), dtype=dtype)
    assert target.dtype == getattr(torch, dtype)
    assert target.name == str(folder)
    assert target.eos_ids == (3, 5)
    assert target.tokenizer is None


def test_gguf_file(tmp_path: Path) -> None:
    target = load_target(str(write_tiny_gguf(tmp_path / "tiny.gguf")), dtype="float32")
    assert target.num_layers == 2
    assert target.tokenizer is not None
    assert len(target.tokenizer("12")["input_ids"]) == 2


def test_a_gguf_that_cuts_words_otherwise_is_left_alone(tmp_path: Path) -> None:
    target = load_target(str(write_tiny_gguf(tmp_path / "tiny.gguf", pre="default")))
    assert target.tokenizer is not None
    assert len(target.tokenizer("12")["input_ids"]) == 1


@pytest.mark.real_model
def test_embedded_name(smollm2_folder: Path) -> None:
    target = load_target("smollm2-135m")
    assert (target.hidden_size, target.vocab_size, target.eos_ids) == (576, 49152, (2, 0))


def test_wrong_paths(tmp_path: Path) -> None:
    assert "did you mean smollm2-135m?" in refusal("smolm2-135m")
    assert "no such file or folder; pass an embedded name" in refusal(tmp_path / "absent")
    assert "no such file or folder" in refusal("models/absent.gguf")
    (tmp_path / "model.bin").write_bytes(b"")
    assert "is a file, but no .gguf file" in refusal(tmp_path / "model.bin")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "has no config.json"),
        ({"q.gguf": ""}, "pass the file itself"),
        ({"adapter_config.json": "{}"}, "merge it into its base"),
        ({"config.json": "{}"}, "has no weights"),
        ({"config.json": "{broken", WEIGHTS: ""}, "cannot load"),
        ({"config.json": '{"model_type": "nonsense"}', WEIGHTS: ""}, "nonsense"),
        ({"config.json": '{"model_type": "t5"}', WEIGHTS: ""}, "cannot load"),
    ],
)
def test_folders_that_are_no_checkpoint(tmp_path: Path, files: dict[str, str], said: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert said in refusal(tmp_path)


@pytest.mark.parametrize(
    "files",
    [
        {"heads.json": "{}", "heads.safetensors": ""},
        {"config.json": '{"medusa_num_heads": 5}', "medusa_lm_head.pt": ""},
        {"config.json": '{"hydra_num_heads": 4}'},
    ],
)
def test_M10_heads_given_as_the_model(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert "holds draft heads, not a model" in refusal(tmp_path)


def test_a_missing_weight_is_not_made_up(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    assert "lacks the weight model.layers.1.mlp.up_proj.weight" in refusal(folder)


def test_truncated_weights(folder: Path) -> None:
    raw = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(raw[: len(raw) // 2])
    assert "cannot load" in refusal(folder)


def test_weights_of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 25}))
    assert "has it in another size" in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"no gguf at all", b"GGUF\x03\x00\x00\x00"])
def test_broken_gguf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.gguf").write_bytes(content)
    assert "as a GGUF model" in refusal(tmp_path / "broken.gguf")


def test_truncated_gguf(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-500])
    assert "as a GGUF model" in refusal(path)


def test_a_number_of_layers_that_no_model_has(tmp_path: Path, folder: Path) -> None:
    """They would be built until the memory is full."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    name = b"llama.block_count"
    raw = path.read_bytes()
    at = raw.index(name) + len(name) + 4  # behind the type of the value
    path.write_bytes(raw[:at] + b"\xff\xff\xff\x7f" + raw[at + 4 :])
    assert "asks for 2147483647 layers" in refusal(path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 10**9}))
    assert "asks for 1000000000 layers" in refusal(folder)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": -1}))
    assert "asks for -1 layers" in refusal(folder)


def test_a_message_of_several_lines_is_not_cut_at_its_colon(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": "wide"}))
    assert "'hidden_size': TypeError: Field 'hidden_size' expected int" in refusal(folder)


def test_M13_a_hostile_pickle_of_a_model_runs_nothing(tmp_path: Path, folder: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (exec, (f"open({str(tmp_path / 'hit')!r}, 'w')",))

    (folder / WEIGHTS).unlink()
    torch.save({"model.norm.weight": Hostile()}, folder / "pytorch_model.bin")
    said = refusal(folder)
    assert "nothing of it was run; get the model as safetensors" in said
    assert "weights_only" not in said  # torch's own words say how to run it
    assert not (tmp_path / "hit").exists()


def test_hub_without_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "looked up on the Hugging Face hub" in refusal("nobody/no-such-model")


def test_wrong_dtype_and_device(folder: Path) -> None:
    assert "expected one of auto, bfloat16, float32, float16" in refusal(folder, dtype="int4")
    assert "expected cpu, cuda or cuda:N" in refusal(folder, device="gpu")
    assert "CUDA devices; use cpu" in refusal(folder, device="cuda:99")


@needs_openvino
def test_a_self_check_that_was_passed_is_not_repeated(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    monkeypatch.setattr(load, "run_self_check", lambda target: checked.append(target.runtime))
    with graphs_in(tmp_path / "cache"):
        for self_check in (False, True, True):
            load_target(str(folder), "int8", runtime="openvino", self_check=self_check)
    assert checked == ["openvino"]
    for _ in range(2):
        load_target(str(folder), "float32")
    assert checked == ["openvino", "eager", "eager"]
