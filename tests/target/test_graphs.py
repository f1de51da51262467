"""The graphs runtime's forward: buckets change nothing, memory stays where graphs know it."""

from __future__ import annotations

import pytest
import torch

from entmtp.errors import BadInput, EntmtpError, ModelRefused
from entmtp.target import TargetModel, runtimes
from entmtp.target.load import load_target
from entmtp.target.masks import causal_among
from entmtp.target.runtimes import graphs, on_runtime, parse_runtime
from entmtp.target.runtimes.capture import DirectRecorder
from entmtp.target.runtimes.graphs import GraphsTarget, node_bucket
from entmtp.target.runtimes.static_cache import Memories, StaticCache
from entmtp.target.selfcheck import self_check
from entmtp.trees import Tree, full, tree_buffers
from fixtures import tiny, tiny_model
from graphed import on_graphs

CPU = torch.device("cpu")
TREE = Tree.from_paths([(0,), (1,), (2,), (1, 0), (1, 1), (1, 1, 0)])
PATH = (0, 2, 5, 6)
"""Slots of the root and of the path 1, 1, 0"""


def graphs_of(target: TargetModel) -> GraphsTarget:
    return GraphsTarget(target, recorder=DirectRecorder())


@pytest.fixture
def target() -> GraphsTarget:
    return graphs_of(tiny())


def random_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(8, shape, generator=torch.Generator().manual_seed(seed))


@torch.inference_mode()
def test_row_by_row_it_is_what_eager_computes(target: GraphsTarget) -> None:
    """Seven rows in a graph of eight, behind prompts of two lengths; then what follows them."""
    eager, buffers = tiny(), tree_buffers((TREE, full(2, 2)), CPU)
    outputs = []
    for each in (eager, target):
        cache = each.new_cache(2, 60)
        for row, length in enumerate((9, 4)):
            list(each.prefill(random_ids(1, length, seed=row), cache.view(row, row + 1)))
        positions = torch.tensor(cache.lengths)[:, None] + buffers.depths
        tree = each.forward(random_ids(2, 7), positions, buffers.mask, cache).clone()
        cache.keep(torch.tensor([PATH, (0, 1, 1, 1)]), [4, 2])
        assert cache.lengths == [13, 6]
        one = torch.ones(2, 1, 1, dtype=torch.bool)
        after = each.forward(random_ids(2, 1), torch.tensor([[13], [6]]), one, cache).clone()
        outputs.append((tree, after))
    for one, other in zip(*outputs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("length", [40, 600])
def test_memory_behind_the_used_part_has_no_say(length: int) -> None:
    """Whatever lies there, in every context bucket."""
    target = graphs_of(tiny(max_length=1024))
    cache = target.new_cache(1, 1100)
    list(target.prefill(random_ids(1, length), cache))
    ids, positions = random_ids(1, 3), length + torch.arange(3)[None]
    among = causal_among(1, 3, CPU)
    expected = target.forward(ids, positions, among, cache).clone()
    for layer in range(target.num_layers):
        for tensor in cache.layer(layer):
            tensor[:, :, length:] = 1e3
    assert torch.equal(target.forward(ids, positions, among, cache), expected)
    used = {key[2] for key in target.captures._by_key}
    assert used == {512 if length < 500 else 1024}


def test_buckets() -> None:
    assert [node_bucket(rows) for rows in (1, 2, 8, 9, 17, 33, 64, 65, 130)] == [
        *(1, 8, 8, 16, 24, 48, 64, 128, 192)
    ]


@torch.inference_mode()
def test_steps_that_were_warmed_up_capture_nothing(target: GraphsTarget) -> None:
    target.warm_up({1, 7})
    before = target.captures.num_captured
    for rows in (1, 5, 8):
        cache = target.new_cache(1, 10)
        list(target.prefill(random_ids(1, 100), cache))
        target.forward(
            random_ids(1, rows), 100 + torch.arange(rows)[None], causal_among(1, rows, CPU), cache
        )
        del cache
    assert target.captures.num_captured == before


def test_memory_is_lent_again_when_nobody_holds_it(target: GraphsTarget) -> None:
    first = target.new_cache(1, 10)
    second = target.new_cache(1, 10)
    places = {first.place, second.place}
    assert len(places) == 2
    first.advance([5])
    del first
    third = target.new_cache(1, 10)
    assert third.place in places
    assert third.lengths == [0]


@torch.inference_mode()
def test_memory_that_moved_takes_its_graphs_along() -> None:
    target = graphs_of(tiny())
    cache = target.new_cache(1, 10)
    one = torch.ones(1, 1, 1, dtype=torch.bool)
    zero = torch.zeros(1, 1, dtype=torch.long)
    target.forward(zero, zero, one, cache)
    before = cache.place
    cache.advance([1])
    cache.add_row()
    assert before.is_left
    view = cache.view(0, 1)
    target.forward(zero, zero + 1, one, view)
    assert target.captures.num_captured == 2
    assert [key[1] for key in target.captures._by_key] == [cache.place]
    assert cache.lengths == [1, 0]


def test_rows_double_so_that_few_growths_serve_many() -> None:
    cache = Memories(tiny().new_cache(1, 1)).lend(1, 4)
    sizes = []
    for _ in range(4):
        cache.add_row()
        sizes.append(cache.place.num_sequences)
    assert sizes == [2, 4, 4, 8]
    assert cache.batch_size == 5
    assert isinstance(cache.view(1, 3), StaticCache)


SLIDING = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 6}


@pytest.mark.parametrize(
    ("arch", "changes"), [("llama", {}), ("qwen3", {}), ("qwen2", {}), ("qwen2", SLIDING)]
)
def test_it_passes_the_self_check(arch: str, changes: dict[str, object]) -> None:
    model = tiny_model(arch, vocab_size=12, **changes)
    target = TargetModel.from_transformers(model, name="tiny")
    assert (target.architecture.window is not None) == bool(changes)
    self_check(graphs_of(target))


def test_a_cpu_is_refused_in_one_line() -> None:
    for refused in (
        lambda: load_target("no-such-model", "float32", runtime="graphs"),
        lambda: parse_runtime("graphs", "float32", "cpu"),
        lambda: on_runtime(tiny(), "graphs", "float32", self_check, print),
        lambda: GraphsTarget(tiny()),
    ):
        with pytest.raises(BadInput, match=r"graphs runtime .*CUDA devices.* cpu") as caught:
            refused()
        assert "\n" not in str(caught.value)


def test_what_graphs_cannot_serve_falls_back_aloud(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody demanded them: before a graph is made, or once the check has failed."""
    checked: list[TargetModel] = []
    assert runtimes._on_graphs(tiny(), False, checked.append, print) is tiny()
    assert checked == [tiny()]
    assert "falling back to runtime eager, which is slower: it is for CUDA" in caplog.text

    def fails_on_graphs(target: TargetModel) -> None:
        if isinstance(target, GraphsTarget):
            raise ModelRefused("it cannot be captured")

    monkeypatch.setattr(graphs, "misfit", lambda _: None)
    monkeypatch.setattr(graphs, "GraphsTarget", lambda target, progress: on_graphs(target))
    said: list[str] = []
    assert runtimes._on_graphs(tiny(), False, fails_on_graphs, said.append) is tiny()
    assert said == ["runtime graphs: the model is on a CUDA device"]
    assert "slower: it cannot be captured" in caplog.text
    with pytest.raises(ModelRefused, match="cannot be captured"):
        runtimes._on_graphs(tiny(), True, fails_on_graphs, said.append)
    assert runtimes._on_graphs(tiny(), True, checked.append, said.append) is on_graphs(tiny())


@pytest.mark.parametrize("name", ["fast", "triton"])
def test_an_attention_that_is_not_there(name: str) -> None:
    from importlib.util import find_spec

    if name == "triton" and find_spec("triton"):
        pytest.skip("triton is installed")
    with pytest.raises(EntmtpError, match=r"expected one of|not installed"):
        GraphsTarget(tiny(), name, recorder=DirectRecorder())
