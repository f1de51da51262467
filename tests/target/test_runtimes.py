"""Which runtime is picked, what is said about it, and the graphs that are kept."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from entmtp.data.cache import silent
from entmtp.errors import BadInput, ModelRefused
from entmtp.target import TargetModel
from entmtp.target.load import load_target
from entmtp.target.runtimes import artefact, on_runtime, parse_runtime
from entmtp.target.runtimes.block_cache import BlockCache, Visibility
from entmtp.target.runtimes.chain import chain_attention
from entmtp.target.runtimes.openvino import OpenVinoTarget
from entmtp.target.selfcheck import self_check
from fixtures import tiny_model
from model_roster import ROWS, Row, build
from runtimes import graphs_in, needs_native, needs_openvino


@pytest.fixture(autouse=True)
def graphs(tmp_path: Path) -> Iterator[Path]:
    with graphs_in(tmp_path):
        yield tmp_path


def target(**changes: object) -> TargetModel:
    return TargetModel.from_transformers(tiny_model(**changes))


def row_of(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def of_roster(name: str, **changes: object) -> TargetModel:
    row = row_of(name)
    return TargetModel.from_transformers(build(replace(row, changes={**row.changes, **changes})))


@pytest.mark.parametrize(
    ("runtime", "number_format", "message"),
    [
        (
            "fast",
            "float32",
            "unknown runtime 'fast'; expected one of auto, eager, native, compiled, openvino,"
            " graphs",
        ),
        ("eager", "int8", "int8 needs --runtime native or openvino or compiled"),
        pytest.param("openvino", "float16", "it has no float16", marks=needs_openvino),
        ("compiled", "float16", "it has no float16"),
    ],
)
def test_what_cannot_be_is_refused_early(runtime: str, number_format: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        parse_runtime(runtime, number_format)


def without_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entmtp.target.runtimes.native.missing", lambda: "none here")


def test_without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entmtp.target.runtimes.find_spec", lambda _: None)
    without_native(monkeypatch)
    said: list[str] = []
    assert on_runtime(target(), "auto", "float32", self_check, said.append).runtime == "eager"
    assert said[0].startswith("not tried: native: none here; openvino: openvino is not installed")
    assert said[0].endswith(
        "; compiled: it would compile for a minute first (do so: --runtime compiled)"
    )
    assert said[1:] == ["runtime eager: nothing else is ready"]
    for runtime, number_format in (("openvino", "float32"), ("auto", "int8")):
        with pytest.raises(BadInput, match="openvino is not installed"):
            on_runtime(target(), runtime, number_format, self_check, silent)


@needs_openvino
def test_auto_says_what_it_picked_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    without_native(monkeypatch)
    said: list[str] = []
    picked = on_runtime(target(), "auto", "float32", self_check, said.append).runtime
    assert "probing the runtimes openvino, eager" in said
    assert said[-1].startswith(f"runtime {picked}: ")
    best = on_runtime(target(), "auto", "auto", self_check, said.append)
    assert (best.runtime, best.number_format) == ("openvino", "int8")
    plain = on_runtime(target(), "eager", "auto", self_check, said.append)
    assert (plain.runtime, plain.number_format) == ("eager", "float32")
    said.clear()
    assert on_runtime(target(), "auto", "float16", self_check, said.append).runtime == "eager"
    assert said[0].startswith("not tried: native: none here; openvino: it has no float16")


@needs_native
@needs_openvino
def test_auto_compares_kernels_of_our_own_with_openvino() -> None:
    said: list[str] = []
    best = on_runtime(target(), "auto", "auto", self_check, said.append)
    assert best.number_format == "int8"
    assert "probing the runtimes native, openvino" in said
    assert said[-1].startswith(f"runtime {best.runtime}: ")
    odd = on_runtime(target(intermediate_size=96), "auto", "auto", self_check, said.append)
    assert odd.runtime == "openvino"


@needs_openvino
def test_auto_falls_back_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no such operation")

    monkeypatch.setattr(artefact, "export_body", broken)
    with caplog.at_level(logging.WARNING):
        assert on_runtime(target(), "auto", "float32", self_check, silent).runtime == "eager"
    assert len(caplog.records) == 1
    assert "falling back from runtime openvino" in caplog.text
    assert "no such operation" in caplog.text
    with pytest.raises(ModelRefused, match="no such operation"):
        on_runtime(target(), "openvino", "float32", self_check, silent)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch, graphs: Path) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BadInput, match=r"a C\+\+ compiler .* no-such-compiler is not found"):
        on_runtime(target(), "compiled", "float32", self_check, silent)
    assert list(graphs.iterdir()) == []


def test_a_failed_compilation_is_one_line_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, graphs: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("C++ compile error\n\nCommand: ...")

    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", broken)
    with pytest.raises(ModelRefused, match=r"the compiled runtime .*C\+\+ compile error\); use"):
        on_runtime(target(), "compiled", "float32", self_check, silent)
    assert list(graphs.iterdir()) == []


@needs_openvino
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mistral: sliding window in every layer", "no masks for layers of kind sliding_attention"),
        ("qwen2: sliding and full layers", "no masks for layers of kind sliding_attention"),
        ("falcon: rope, MQA, attention of its own", "falcon keeps attention of its own"),
        ("mixtral: experts", r"experts \(num_local_experts\)"),
    ],
)
def test_what_it_does_not_compute_is_refused_by_name(name: str, message: str) -> None:
    model = of_roster(name)
    for number_format in ("float32", "int8"):
        with pytest.raises(BadInput, match=f"{message}.*; use --runtime eager"):
            on_runtime(model, "openvino", number_format, self_check, silent)
    said: list[str] = []
    assert on_runtime(model, "auto", "float32", self_check, said.append) is model
    assert re.search(message, said[0])


@needs_openvino
def test_soft_caps_and_sinks_in_attention_are_refused_by_name() -> None:
    full = {"layer_types": 3 * ["full_attention"]}
    capped = of_roster("gemma2: soft caps, sliding and full layers", **full)
    with pytest.raises(ModelRefused, match="does not compute attention with softcap; use --runt"):
        on_runtime(capped, "openvino", "float32", self_check, silent)
    rows, mask = torch.zeros(1, 2, 3, 4), torch.zeros(1, 1, 3, 3)
    with pytest.raises(ModelRefused, match="s_aux"):
        chain_attention(torch.nn.Identity(), rows, rows, rows, mask, s_aux=torch.zeros(2))


@needs_openvino
def test_packed_weights_are_refused_by_name() -> None:
    class Packed(torch.nn.Parameter):
        pass

    packed = target()
    layer = packed.transformers_model.model.layers[0].mlp.up_proj
    layer.weight = Packed(layer.weight)
    with pytest.raises(BadInput, match="packed by a quantisation package"):
        on_runtime(packed, "openvino", "float32", self_check, silent)


@needs_openvino
def test_a_model_for_plain_decoding_only_runs_in_pytorch(tmp_path: Path) -> None:
    build(row_of("falcon: alibi")).save_pretrained(tmp_path / "model")
    folder = str(tmp_path / "model")
    for runtime, number_format in (("openvino", "float32"), ("auto", "int8")):
        with pytest.raises(BadInput, match=r"plain decoding only.*alibi.*use --runtime eager"):
            load_target(folder, number_format, allow_plain=True, runtime=runtime)
    said: list[str] = []
    plain = load_target(folder, "float32", allow_plain=True, runtime="auto", progress=said.append)
    assert (plain.runtime, bool(plain.tree_refusal)) == ("eager", True)
    assert said[-1].startswith("plain decoding only:")


@needs_openvino
@pytest.mark.parametrize(
    "name",
    [
        "cohere: scaled logits",
        "granite: scaled logits and residuals",
        "nanochat: soft-capped logits",
        "apertus",  # has a buffer without dimensions
    ],
)
@torch.inference_mode()
def test_what_is_behind_the_output_layer_is_computed_in_int8_too(name: str) -> None:
    plain = of_roster(name)
    int8 = on_runtime(plain, "openvino", "int8", self_check, silent)
    hidden = 20 * torch.randn(3, plain.hidden_size)
    exact, near = plain.logits(hidden), int8.logits(hidden)
    assert (exact - near).abs().mean() < 0.02 * exact.std()


@needs_openvino
@pytest.mark.parametrize("number_format", ["float32", "bfloat16", "int8"])
def test_every_format_passes_the_self_check(number_format: str) -> None:
    self_check(OpenVinoTarget(target(vocab_size=64), number_format, silent))


@needs_openvino
def test_a_graph_that_hides_nothing_fails_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = BlockCache.visibility

    def visible(cache: BlockCache, among: torch.Tensor, positions: torch.Tensor) -> Visibility:
        seen = exact(cache, among, positions)
        is_prompt = among.shape[1] > 9
        return seen if is_prompt else seen._replace(mask=torch.zeros_like(seen.mask))

    monkeypatch.setattr(BlockCache, "visibility", visible)
    with pytest.raises(ModelRefused, match="a tree of drafts"):
        self_check(OpenVinoTarget(target(vocab_size=64), "float32", silent))


@needs_openvino
def test_a_graph_is_exported_once_and_never_used_for_another_model(graphs: Path) -> None:
    said: list[str] = []

    def exports(model: TargetModel) -> int:
        said.clear()
        OpenVinoTarget(model, "float32", said.append)
        return sum(line.startswith("exporting") for line in said)

    assert exports(target()) == 1
    assert exports(target()) == 0
    assert exports(target(rope_theta=123.0)) == 1  # the same weights, other positions
    changed = target()
    changed.output_weight.view(-1)[-1] += 1  # the fingerprint's samples may miss it
    assert exports(changed) == 1
    (folder,) = {path.parent for path in graphs.glob("*/body.bin")}
    (folder / "body.bin").write_bytes(b"")
    assert exports(changed) == 1
    assert not list(graphs.glob(".*.part"))


@needs_openvino
def test_a_failed_export_leaves_nothing(monkeypatch: pytest.MonkeyPatch, graphs: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr("openvino.save_model", broken)
    with pytest.raises(RuntimeError, match="disk"):
        OpenVinoTarget(target(), "float32", silent)
    assert list(graphs.iterdir()) == []


@needs_openvino
def test_sums_over_keys_stay_in_float32_in_a_bf16_graph() -> None:
    fast = OpenVinoTarget(target(), "bfloat16", silent)
    compiled = fast._body.lane(0)._request.get_compiled_model().get_runtime_model()
    count: Counter[tuple[str, str]] = Counter()
    for node in compiled.get_ops():
        kind, precision = (node.get_rt_info()[k].value for k in ("layerType", "runtimePrecision"))
        count[kind, precision] += 1
    layers = fast.num_layers
    assert count["MatMul", "f32"] == 3 * layers  # over blocks, the tail, and behind its border
    assert count["Reduce", "f32"] == layers  # the sum of blocks
    assert count["MatMul", "bf16"] == 2 * layers  # scores


@needs_openvino
@torch.inference_mode()
def test_int8_is_near_and_has_its_own_output_layer() -> None:
    plain = target(vocab_size=64)
    int8 = OpenVinoTarget(plain, "int8", silent)
    hidden = torch.randn(3, plain.hidden_size)
    exact, near = plain.logits(hidden), int8.logits(hidden)
    assert not torch.equal(exact, near)
    assert (exact - near).abs().mean() < 0.02 * exact.std()
    assert torch.equal(int8.logits(hidden[1]), near[1])
