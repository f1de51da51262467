"""The parts of a graphed step can be captured: fixed shapes, and no value read on the host.

What cannot be captured cannot be traced whole by `torch.compile(fullgraph=True)` either, or not
without a number that only the values of tensors give; that shows without a GPU. And a guard
watches whole steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from draft_heads import KINDS, random_heads
from entmtp.decode import Draw, ExactAcceptor, Sampler, Sampling
from entmtp.engine import Engine, GenerationParams, graphed
from entmtp.heads import Draft
from entmtp.scheduler import PlainPolicy, Selection, StaticPolicy, TreePolicy
from entmtp.target.masks import near_mask, placed_mask
from entmtp.target.runtimes.capture import Captures, DirectRecorder
from entmtp.trees import TreeBuffers, chain, full, tree_buffers
from entmtp.trees.shelf import ShelfShape, TreeShelf
from fixtures import tiny
from graphed import HostRead, NoHostReads, batch_of, on_graphs

SAMPLINGS = (
    [Sampling(), Sampling()],
    [Sampling(0.7, seed=1), Sampling()],
    [Sampling(1.3, top_k=5, top_p=0.9, seed=2), Sampling(0.9, min_p=0.1, seed=3)],
)
LENGTHS = torch.tensor([3, 7])
TREE = full(3, 2)


def buffers() -> TreeBuffers:
    return tree_buffers((TREE, chain(2)), torch.device("cpu"), 16)


def eager_if_fixed(module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
    """The backend `eager`, for graphs in which no number or shape depends on a value."""
    for node in module.graph.nodes:
        for value in tree_leaves(node.meta.get("example_value")):
            if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
                assert not free_unbacked_symbols(value), f"{node} depends on a value"
    return module.forward


def whole(function: Callable[..., Any]) -> Callable[..., Any]:
    """Traced in one piece, or an error."""
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, backend=eager_if_fixed)
    return compiled


def flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value if isinstance(value, tuple | list) else vars(value).values()
    return [tensor for part in parts if not isinstance(part, int) for tensor in flat(part)]


@torch.no_grad()
def assert_whole(function: Callable[..., Any], *arguments: Any) -> None:
    """Traced whole, it gives what it gives."""
    expected = [tensor.clone() for tensor in flat(function(*arguments))]
    got = flat(whole(function)(*arguments))
    assert got
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_reads_is_not_whole() -> None:
    for reading in (
        lambda x: x[: int(x[0])],
        lambda x: torch.tensor(x.tolist()),
        lambda x: x if x.any() else -x,
        lambda x: x[x > 1],
        lambda x: x * x.max().item(),
    ):
        with pytest.raises(torch._dynamo.exc.TorchDynamoException):
            whole(reading)(torch.arange(4))


def test_masks() -> None:
    among = buffers().mask
    assert_whole(lambda lengths, among: placed_mask(lengths, among, 40), LENGTHS, among)
    positions = LENGTHS[:, None] + buffers().depths
    assert_whole(lambda *given: near_mask(*given, 40, 4), LENGTHS, positions)


def test_topology_by_index() -> None:
    shelf = TreeShelf(ShelfShape.of([TREE, chain(3)], 16), torch.device("cpu"))
    assert_whole(shelf.buffers, torch.tensor(shelf.rows([chain(3), TREE])))


@pytest.mark.parametrize("kind", KINDS)
def test_levels_of_a_draft(kind: str) -> None:
    heads, roots, trees = random_heads(tiny(), kind), torch.tensor([1, 5]), buffers()

    def draft(context: torch.Tensor) -> Draft:
        return heads.draft(context, roots, trees)

    assert_whole(draft, torch.randn(2, 64))


@pytest.mark.parametrize("asked", SAMPLINGS)
def test_the_walk(asked: list[Sampling]) -> None:
    target, walk, trees = tiny(), ExactAcceptor(early_exit=False), buffers()
    sampler = Sampler(asked, target.device)

    def accept(hidden: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor) -> tuple[Any, ...]:
        found = walk(hidden, ids, trees, Draw(target.logits, sampler, lengths[:, None]))
        return found[:4]

    assert_whole(accept, torch.randn(2, 16, 64), torch.randint(8, (2, 16)), LENGTHS)


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_the_forward(arch: str) -> None:
    target = on_graphs(tiny(arch))
    cache = target.new_cache(2, 64)
    ids, positions = torch.randint(8, (2, 16)), LENGTHS[:, None] + buffers().depths

    def verify(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return target._verify(cache, 64, *given)

    assert_whole(verify, ids, positions, buffers().mask, LENGTHS)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_what_settles_a_step(kind: str) -> None:
    target = on_graphs(tiny())
    engine = Engine(target, random_heads(tiny(), kind), StaticPolicy(chain(2)), max_batch_size=2)
    batch = batch_of(engine)
    cache, held = target.new_cache(2, 64), batch._new_heads_cache(64)
    if held is not None:
        held.add_row()
    slots, counts = torch.tensor([[0, 2, 5], [0, 0, 0]]), torch.tensor([3, 1])
    hidden = torch.randn(2, 16, 64)

    def settle(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return batch._settled(cache, held, 64, *given)

    for index in range(3):
        keys, values = cache.layer(index)
        keys.normal_()
        values.normal_()
    first = cache.layer(2)[0].clone()
    # It moves rows: with both lanes' own rows first, a second time changes nothing more.
    expected = settle(hidden, slots, counts, LENGTHS)[0].clone()
    moved = cache.layer(2)[0]
    assert torch.equal(moved[0, :, 3:6], first[0, :, [3, 5, 8]])
    moved.copy_(first)
    got = whole(settle)(hidden, slots, counts, LENGTHS)[0]
    torch.testing.assert_close(got, expected)
    assert torch.equal(moved[0, :, 3:6], first[0, :, [3, 5, 8]])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_guard_sees_every_way_to_read(mode: Callable[[], Any]) -> None:
    """In inference mode, too, in which kernels have other names."""
    x = torch.arange(4)
    ways: tuple[Callable[[], Any], ...] = (
        lambda: x[0].item(),
        lambda: x.tolist(),
        lambda: bool(x.any()),
        lambda: int(x[1]),
        lambda: x.cpu(),
        lambda: x.numpy(),
        lambda: x.nonzero(),
        lambda: x[x > 1],
    )
    guard = NoHostReads()
    for way in ways:
        with pytest.raises(HostRead), mode(), guard.watching():
            way()
    with guard.watching(), guard.allowed():
        assert x.tolist() == [0, 1, 2, 3]


class ReadsRoot(StaticPolicy):
    def begin(self, seed: int) -> Selection:
        selection = super().begin(seed)
        selection.reads_root = True
        return selection


@pytest.mark.parametrize("policy", [PlainPolicy(), StaticPolicy(TREE), ReadsRoot(TREE)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_reads_in_one_place(
    kind: str, policy: TreePolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, unpacked = NoHostReads(), graphed.unpacked

    def read(*arguments: Any) -> Any:
        with guard.allowed():
            return unpacked(*arguments)

    engine = Engine(on_graphs(tiny()), random_heads(tiny(), kind), policy)
    monkeypatch.setattr(graphed, "unpacked", read)
    for token in range(3):
        sampling = Sampling(token * 0.5, top_p=0.9, repetition_penalty=1 + 0.1 * token)
        engine.add([token] * (1 + token), GenerationParams(60, sampling))
    engine.step()
    guard.num_allowed = 0
    with guard.watching():
        engine.step()
    assert engine.num_running == 3
    assert guard.num_allowed == 1


def test_a_capture_is_made_once_for_each_key() -> None:
    captures, x = Captures(DirectRecorder()), torch.arange(4)
    [first] = captures.call(("double",), lambda x: (2 * x,), [x])
    assert first.tolist() == [0, 2, 4, 6]
    [again] = captures.call(("double",), lambda x: (2 * x,), [x + 1])
    assert again is first  # static
    assert first.tolist() == [2, 4, 6, 8]
    assert captures.num_captured == 1
    captures.call(("double",), lambda x: (2 * x,), [x[:2]])
    assert first.tolist() == [0, 2, 6, 8]  # in front
    captures.call(("double", 2), lambda x: (2 * x,), [x[:2]])
    assert captures.num_captured == 2
