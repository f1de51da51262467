"""When layers are compiled, and when what the cache has will do. Nothing is really compiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from entmtp.target import TargetModel
from entmtp.target.linears import Int8Linear
from entmtp.target.runtimes import compiled, is_compiled, packages
from entmtp.target.runtimes.compiled import CompiledTarget, Plan, make_plan
from entmtp.target.runtimes.packages import Source
from fixtures import tiny_model
from model_roster import ROWS, build
from runtimes import graphs_in, needs_compiler


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    def compile_nothing(_: Source, path: Path) -> None:
        path.write_text("code")

    monkeypatch.setattr(packages, "_compile", compile_nothing)
    monkeypatch.setattr(packages, "_load", lambda _: list)
    with graphs_in(tmp_path):
        yield tmp_path


def target(**changes: object) -> TargetModel:
    return TargetModel.from_transformers(tiny_model(**changes))


def compiles(model: TargetModel, number_format: str = "float32") -> bool:
    said: list[str] = []
    CompiledTarget(model, number_format, said.append)
    return any(line.startswith("compiling") for line in said)


@needs_compiler
def test_layers_are_compiled_once_whatever_their_weights(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_compiled(target(), "float32")
    assert compiles(target())
    assert is_compiled(target(), "float32")
    assert not compiles(target(seed=1))
    assert compiles(target(), "bfloat16")
    assert compiles(target(rms_norm_eps=0.1))
    assert compiles(target(intermediate_size=96))
    (file, *_) = kept.glob("compiled-*-bfloat16/region-0.pt2")
    file.write_text("")
    assert compiles(target(), "bfloat16")
    monkeypatch.setattr(packages, "machine", lambda: "of another processor")
    assert compiles(target())


@needs_compiler
def test_whether_they_are_compiled_is_told_without_tracing_them_again(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[TargetModel] = []

    def make(model: TargetModel, number_format: str) -> Plan:
        traced.append(model)
        return make_plan(model, number_format)

    monkeypatch.setattr(compiled, "make_plan", make)
    assert [is_compiled(target(), "float32") for _ in range(2)] == [False, False]
    assert len(traced) == 1
    compiles(target())
    traced.clear()
    assert is_compiled(target(seed=1), "float32")
    (file, *_) = kept.glob("compiled-*/region-0.pt2")
    file.write_text("")
    assert not is_compiled(target(), "float32")
    assert not traced
    assert not is_compiled(target(rms_norm_eps=0.1), "float32")
    assert not is_compiled(target(), "int8")
    assert len(traced) == 2
    monkeypatch.setattr(packages, "code_digest", lambda: "other code")
    is_compiled(target(), "float32")
    assert len(traced) == 3


def test_layers_of_one_kind_are_one_region() -> None:
    (region,) = make_plan(target(), "float32").regions
    assert region.places == [0, 1, 2]


def test_layers_that_compute_otherwise_are_regions_of_their_own() -> None:
    model = tiny_model()
    model.model.layers[1].input_layernorm.variance_epsilon = 0.5
    plan = make_plan(TargetModel.from_transformers(model), "float32")
    assert [region.places for region in plan.regions] == [[0, 2], [1]]


def test_the_model_itself_stays_as_it_was() -> None:
    model = target()
    before = [(name, part.forward) for name, part in model.transformers_model.named_modules()]
    plan = make_plan(model, "float32")
    plan.skeleton([list])
    after = [(name, part.forward) for name, part in model.transformers_model.named_modules()]
    assert before == after
    assert model.transformers_model.config._attn_implementation == "entmtp"


@pytest.mark.parametrize("name", ["gpt2", "cohere: scaled logits", "apertus", "gpt_neox"])
def test_other_bodies_show_their_layers(name: str) -> None:
    row = next(row for row in ROWS if row.name.startswith(name))
    model = TargetModel.from_transformers(build(row))
    plan = make_plan(model, "float32")
    assert sum(len(region.places) for region in plan.regions) == model.num_layers


def test_an_int8_row_is_alone() -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(48, 64), torch.randn(9, 64)
    layer = Int8Linear(weight, torch.randn(48))
    together = layer(rows)
    for place in range(9):
        assert torch.equal(layer(rows[place]), together[place])
    exact = rows @ weight.t() + layer.bias
    assert (together - exact).abs().mean() < 0.02 * exact.std()
    assert torch.equal(layer(torch.zeros(1, 64))[0], layer.bias)
