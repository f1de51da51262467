"""The law on every runtime: drafted ids are those of plain decoding on the same runtime.

In float32 they are those of PyTorch as well. In other formats the target is another one, and the
law is about that one: a verified row has, bit for bit, what plain decoding computes.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch
from torch._dynamo.utils import counters

from draft_heads import overfit_heads, random_heads
from entmtp.decode import Sampling
from entmtp.engine import Engine, GenerationParams
from entmtp.heads import DraftHeads
from entmtp.scheduler import RandomPolicy, StaticPolicy
from entmtp.target import KVCache, TargetModel
from entmtp.target.runtimes.block_cache import BlockCache
from entmtp.target.runtimes.late_cache import BLOCK
from entmtp.trees import ROOT, Tree, chain, full, tree_buffers
from fixtures import tiny
from reference import Request, ids_of, random_prompts, result_of, run
from runtimes import (
    RUNTIMES,
    RUNTIMES_AND_FORMATS,
    committed,
    drafting_natively,
    drafting_on_openvino,
    formats_of,
    needs_compiler,
    needs_native,
    needs_openvino,
    on,
    on_openvino,
)

on_each_runtime = pytest.mark.parametrize(("runtime", "number_format"), RUNTIMES_AND_FORMATS)

FORMATS = formats_of("openvino")
SPARSE = Tree.from_paths([(0,), (1,), (3,), (3, 2), (1, 5), (1, 6), (3, 2, 1), (1, 6, 7)])
SHAPES = (ROOT, chain(1), chain(4), SPARSE, full(8, 2), full(3, 3))
NUM_TOKENS = 24
# Compiling takes seconds for each architecture and format: two of one, three of the other.
IN_FLOAT32 = [
    *(pytest.param("openvino", arch, marks=needs_openvino) for arch in ("llama", "qwen2", "qwen3")),
    *(
        pytest.param("compiled", arch, marks=[needs_compiler, pytest.mark.slow])
        for arch in ("llama", "qwen2")
    ),
]
CASES = [
    *(pytest.param(*case.values, "float32", marks=case.marks) for case in IN_FLOAT32),
    pytest.param("openvino", "llama", "bfloat16", marks=needs_openvino),
    pytest.param("openvino", "qwen3", "int8", marks=needs_openvino),
    *(
        pytest.param("native", arch, number_format, marks=needs_native)
        for number_format in formats_of("native")
        for arch in ("llama", "qwen2", "qwen3")
    ),
    pytest.param("compiled", "llama", "bfloat16", marks=[needs_compiler, pytest.mark.slow]),
    pytest.param("compiled", "llama", "int8", marks=[needs_compiler, pytest.mark.slow]),
]
COMPILERS = {
    "openvino": ("openvino.Core.compile_model", "openvino.convert_model"),
    "compiled": ("torch.export.export", "torch._inductor.aoti_compile_and_package"),
    "native": ("subprocess.run",),
}
"""Whatever makes code on each runtime."""


PATH = (1, 6, 7)
TREE = Tree.from_paths([*full(8, 2).paths[1:], PATH])
SLOTS = [TREE.paths.index(PATH[:depth]) for depth in range(len(PATH) + 1)]
LENGTHS = (
    *(1, 3, *range(124, 129), *range(250, 261), *range(382, 391), *range(505, 521)),
    *(*range(1018, 1031), 2047, 4093, 32_760),
)
"""Around the borders of blocks, and of the sums that OpenVINO's product cuts by itself."""
MAX_LENGTH = 40_000


@lru_cache
def requests(count: int = 9) -> tuple[Request, ...]:
    """Ragged: prompts and answers of every length, every way to sample."""
    params = [
        GenerationParams(
            NUM_TOKENS - index % 5,
            Sampling(0.7 * (index % 3), top_k=3 * (index % 2), top_p=0.9, seed=index),
        )
        for index in range(count)
    ]
    return tuple(zip(random_prompts(count, 8, longest=30, seed=2), params, strict=True))


@lru_cache
def plain(target: TargetModel) -> list[tuple[int, ...]]:
    return ids_of(run(Engine(target, max_batch_size=1), requests()))


def heads(arch: str) -> DraftHeads:
    texts = tuple(ids[: NUM_TOKENS - 4] for ids in plain(tiny(arch)))
    return overfit_heads(tiny(arch), "hydra++", texts)


@pytest.mark.parametrize(("runtime", "arch"), IN_FLOAT32)
def test_plain_equals_pytorch(runtime: str, arch: str) -> None:
    assert plain(on(runtime, arch)) == plain(tiny(arch))


@pytest.mark.parametrize(("runtime", "arch", "number_format"), CASES)
def test_the_law(runtime: str, arch: str, number_format: str) -> None:
    target = on(runtime, arch, number_format)
    engine = Engine(target, heads(arch), RandomPolicy(SHAPES), max_batch_size=1)
    results = run(engine, requests())
    assert ids_of(results) == plain(target)
    num_steps = sum(result.stats.num_drafts for result in results)
    assert num_steps < 0.9 * sum(len(ids) - 1 for ids in plain(target))


@needs_openvino
@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("kind", ["medusa", "hydra++"])
def test_the_law_with_heads_that_draft_there(kind: str, number_format: str) -> None:
    target = on_openvino("llama", number_format)
    texts = tuple(ids[: NUM_TOKENS - 4] for ids in plain(tiny()))
    fast = drafting_on_openvino(overfit_heads(tiny(), kind, texts), target)
    engine = Engine(target, fast, RandomPolicy(SHAPES), max_batch_size=3)
    results = run(engine, requests())
    assert ids_of(results) == plain(target)
    num_steps = sum(result.stats.num_drafts for result in results)
    assert num_steps < 0.9 * sum(len(ids) - 1 for ids in plain(target))


@needs_native
@pytest.mark.parametrize("kind", ["medusa", "hydra", "hydra++"])
def test_the_law_with_heads_that_draft_natively(kind: str) -> None:
    target = on("native", "llama", "int8")
    texts = tuple(ids[: NUM_TOKENS - 4] for ids in plain(tiny()))
    fast = drafting_natively(overfit_heads(tiny(), kind, texts))
    engine = Engine(target, fast, RandomPolicy(SHAPES), max_batch_size=3)
    results = run(engine, requests())
    assert ids_of(results) == plain(target)
    num_steps = sum(result.stats.num_drafts for result in results)
    assert num_steps < 0.9 * sum(len(ids) - 1 for ids in plain(target))


@on_each_runtime
def test_sequences_that_come_and_go(runtime: str, number_format: str) -> None:
    target = on(runtime, "llama", number_format)
    engine = Engine(target, heads("llama"), RandomPolicy(SHAPES), max_batch_size=5)
    ids = [engine.add(prompt, params) for prompt, params in requests()[:6]]
    engine.step()
    engine.cancel(ids[0])  # of the first row: the last one moves there
    engine.step()
    ids += [engine.add(prompt, params) for prompt, params in requests()[6:]]
    results = [result_of(engine, request_id) for request_id in ids]
    assert results[0].token_ids == plain(target)[0][: len(results[0].token_ids)]
    assert ids_of(results[1:]) == plain(target)[1:]
    assert engine.num_cache_bytes == 0


@on_each_runtime
def test_memory_grows_under_running_sequences(runtime: str, number_format: str) -> None:
    target = on(runtime, "llama", number_format, length=1024)
    prompts = random_prompts(3, 8, longest=20, seed=7)
    prompts[0] += random_prompts(1, 8, longest=700, seed=8)[0][: 5 * BLOCK]
    pairs = [(prompt, GenerationParams(BLOCK // 2 + 50 * i)) for i, prompt in enumerate(prompts)]
    expected = ids_of(run(Engine(target, max_batch_size=1), pairs))
    engine = Engine(target, random_heads(tiny(), "medusa"), StaticPolicy(SPARSE), max_batch_size=3)
    assert ids_of(run(engine, pairs)) == expected


@on_each_runtime
@torch.inference_mode()
def test_a_row_of_a_tree_has_the_bits_of_plain_decoding(runtime: str, number_format: str) -> None:
    target = on(runtime, "llama", number_format)
    generator = torch.Generator().manual_seed(1)
    prompt = torch.randint(8, (1, 37), generator=generator)
    path = (1, 6, 7)
    for tree in (SPARSE, Tree.from_paths([*full(8, 2).paths[1:], path])):
        buffers = tree_buffers((tree,), target.device)
        ids = torch.randint(8, (1, tree.num_nodes), generator=generator)
        cache = target.new_cache(1, 64)
        for _ in target.prefill(prompt, cache):
            pass
        rows = target.forward(ids, cache.length + buffers.depths, buffers.mask, cache)
        for depth in range(len(path) + 1):
            node = tree.paths.index(path[:depth])
            one = torch.ones(1, 1, 1, dtype=torch.bool)
            position = torch.full((1, 1), cache.length)
            row = target.forward(ids[:, [node]], position, one, cache)
            assert torch.equal(row[0, 0], rows[0, node])
            assert torch.equal(target.logits(row[:, 0]), target.logits(rows[:, node]))
            cache.advance([1])


@needs_openvino
def test_an_answer_to_a_long_prompt_crosses_blocks_of_keys() -> None:
    target = on_openvino("llama", "int8", length=1024)
    prompt = random_prompts(1, 8, longest=900, seed=5)[0]
    prompt = (prompt * 900)[:630]
    params = GenerationParams(300)
    expected = Engine(target).generate(prompt, params).token_ids
    engine = Engine(target, random_heads(tiny(), "medusa"), StaticPolicy(full(8, 2)))
    result = engine.generate(prompt, params)
    assert result.token_ids == expected
    assert result.stats.num_drafts < 0.5 * len(expected)  # all that may follow is in the tree


@needs_openvino
@pytest.mark.parametrize("is_pinned", [False, True])
@pytest.mark.parametrize("number_format", FORMATS)
@torch.inference_mode()
def test_an_accepted_path_has_the_bits_of_rows_committed_one_at_a_time(
    number_format: str, is_pinned: bool
) -> None:
    """Wherever it stands in a text, and where it crosses a border between blocks of keys, too."""
    target = on_openvino("llama", number_format, length=MAX_LENGTH)
    if is_pinned:
        target.warm_up({1, TREE.num_nodes})
    generator = torch.Generator().manual_seed(3)
    for length in LENGTHS:
        text = Text(target, length, generator)
        one_by_one, in_trees = text.cache(), text.cache()
        for _ in range(2):
            nodes = torch.randint(8, (1, TREE.num_nodes), generator=generator)
            rows = forward(target, in_trees, nodes, TREE)[:, SLOTS]
            in_trees.keep(torch.tensor([SLOTS]), [len(SLOTS)])
            for place, slot in enumerate(SLOTS):
                row = forward(target, one_by_one, nodes[:, [slot]], ROOT)
                one_by_one.advance([1])
                assert torch.equal(row[:, 0], rows[:, place]), (length, place)
        assert in_trees.lengths == one_by_one.lengths == [length + 2 * len(SLOTS)]
        assert_equal_bits(one_by_one, in_trees)
    target.make_room()


@needs_openvino
@pytest.mark.parametrize("number_format", FORMATS)
@torch.inference_mode()
def test_company_of_any_length_changes_no_bit_of_an_accepted_path(number_format: str) -> None:
    target = on_openvino("llama", number_format, length=MAX_LENGTH)
    generator = torch.Generator().manual_seed(4)
    texts = [Text(target, length, generator) for length in (3, 126, 255, 511, 640, 1023)]
    together, alone = texts[0].cache(), [text.cache() for text in texts]
    for row, text in enumerate(texts[1:], 1):
        together.add_row()
        text.write(together.view(row, row + 1))
    for _ in range(2):
        nodes = torch.randint(8, (len(texts), TREE.num_nodes), generator=generator)
        rows = forward(target, together, nodes, TREE)[:, SLOTS]
        together.keep(torch.tensor(len(texts) * [SLOTS]), len(texts) * [len(SLOTS)])
        for sequence, cache in enumerate(alone):
            for place, slot in enumerate(SLOTS):
                row = forward(target, cache, nodes[[sequence]][:, [slot]], ROOT)
                cache.advance([1])
                assert torch.equal(row[0, 0], rows[sequence, place]), (cache.lengths, place)
    for sequence, cache in enumerate(alone):
        assert_equal_bits(cache, together.view(sequence, sequence + 1))


class Text:
    """Keys and values of a text that nobody has to read: random ones."""

    def __init__(self, target: TargetModel, length: int, generator: torch.Generator) -> None:
        self._target = target
        self._length = length
        dtype = torch.bfloat16 if target.number_format == "bfloat16" else torch.float32
        self._rows = [
            tuple(
                torch.randn(
                    (target.layout.count(shape), 1, shape.num_kv_heads, length, dim),
                    generator=generator,
                ).to(dtype)
                for dim in (shape.key_dim, shape.value_dim)
            )
            for shape in dict.fromkeys(target.layout)
        ]

    def cache(self) -> BlockCache:
        """A cache with it as the only sequence."""
        cache = self._target.new_cache(1, 1)
        assert isinstance(cache, BlockCache)
        return self.write(cache)

    def write(self, cache: BlockCache) -> BlockCache:
        cache.offer(self._rows)
        cache.advance([self._length])
        return cache


def forward(target: TargetModel, cache: KVCache, ids: torch.Tensor, tree: Tree) -> torch.Tensor:
    """Hidden states of a tree of `ids` `[B, T]` behind each sequence."""
    buffers = tree_buffers(len(ids) * (tree,), target.device)
    positions = torch.tensor(cache.lengths)[:, None] + buffers.depths
    return target.forward(ids, positions, buffers.mask, cache)


def assert_equal_bits(cache: BlockCache, other: BlockCache) -> None:
    """Of all that is committed of one sequence."""
    for rows, others in zip(committed(cache), committed(other), strict=True):
        assert torch.equal(rows, others)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_nothing_is_compiled_while_trees_change(
    runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = on(runtime, "llama", formats_of(runtime)[0], length=1024)
    engine = Engine(target, random_heads(tiny(), "medusa"), RandomPolicy(SHAPES))
    compiled = []
    for place in COMPILERS[runtime]:
        monkeypatch.setattr(place, lambda *_, **__: compiled.append(1))
    traced = counters["stats"]["unique_graphs"]
    result = engine.generate([1, 2, 3], GenerationParams(3 * BLOCK + 200))
    assert result.stats.num_drafts >= 200
    assert not compiled
    assert counters["stats"]["unique_graphs"] == traced
