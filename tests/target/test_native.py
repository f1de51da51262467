"""The kernels of the native runtime: near PyTorch, and the same bits in any company."""

from __future__ import annotations

import math
import os
import signal
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from entmtp.data.cache import silent
from entmtp.decode.noise import gumbel_noise
from entmtp.errors import BadInput, ModelRefused
from entmtp.target import TargetModel, load
from entmtp.target.masks import causal_among
from entmtp.target.root_signals import root_signals
from entmtp.target.runtimes import on_runtime
from entmtp.target.runtimes.native import FORMATS, NativeTarget, library, weights
from entmtp.target.runtimes.native import target as target_module
from entmtp.target.runtimes.native.cache import NativeCache, OfferedRows
from entmtp.target.runtimes.native.embedding import EmbeddingRows
from entmtp.target.runtimes.native.library import TILE_INPUTS, PackedMatrix
from entmtp.target.selfcheck import self_check
from entmtp.trees import Tree, full, tree_buffers
from fixtures import tiny, tiny_model
from runtimes import needs_native, on_native

pytestmark = needs_native

TREE = Tree.from_paths([*full(4, 2).paths[1:], (1, 2, 0), (1, 2, 1), (1, 2, 1, 3)])
PATH = [(), (1,), (1, 2), (1, 2, 1), (1, 2, 1, 3)]
SLOTS = [TREE.paths.index(path) for path in PATH]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(numbers: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.round(numbers / scale) * scale


def by_groups(rows: torch.Tensor, span: int) -> torch.Tensor:
    """Rows `[R, I]` as the kernels hold them, in float32."""
    groups = rows.unflatten(1, (-1, span * TILE_INPUTS))
    return rounded(groups, groups.abs().amax(-1, keepdim=True) / 127).flatten(1)


def weight_by_groups(weight: torch.Tensor, span: int) -> torch.Tensor:
    """The same for a weight, whose scales are bfloat16 numbers that are not too small."""
    groups = weight.unflatten(1, (-1, span * TILE_INPUTS))
    exact = groups.abs().amax(-1, keepdim=True) / 127
    scale = (((exact.view(torch.int32) + 0xFFFF) >> 16) << 16).view(torch.float32)
    return rounded(groups, scale).flatten(1)


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 5, 16, 17, 40])
@pytest.mark.parametrize(
    ("width", "span"), [(64, 1), (192, 1), (192, 3), (320, 1), (1536, 2), (1536, 1), (3200, 2)]
)
def test_a_product_is_that_of_its_rounded_numbers(
    width: int, span: int, num_rows: int, num_threads: int
) -> None:
    weight, bias, rows = random(50, width), random(50, seed=1), random(num_rows, width, seed=2)
    product = PackedMatrix(weight, bias, span=span)(rows, num_threads)
    numbers = by_groups(rows, span).double() @ weight_by_groups(weight, span).double().T
    assert (product - numbers - bias.double()).abs().max() < 1e-3


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("num_rows", [1, 3, 16, 17, 40])
@pytest.mark.parametrize("width", [64, 192, 1536])
def test_a_product_in_bfloat16_is_that_of_its_rounded_numbers(
    width: int, num_rows: int, num_threads: int
) -> None:
    weight, bias, rows = random(50, width), random(50, seed=1), random(num_rows, width, seed=2)
    product = PackedMatrix(weight, bias, number_format="bfloat16")(rows, num_threads)
    numbers = rows.bfloat16().double() @ weight.bfloat16().double().T
    assert (product - numbers - bias.double()).abs().max() < 1e-4


@pytest.mark.parametrize("number_format", FORMATS)
def test_a_row_of_a_product_has_the_same_bits_in_any_company(number_format: str) -> None:
    matrix = PackedMatrix(random(96, 320), number_format=number_format)
    rows = random(70, 320, seed=3)
    alone = torch.cat([matrix(row[None].contiguous(), 2) for row in rows])
    for count in (2, 3, 4, 7, 12, 16, 33, 70):
        parts = [matrix(part.contiguous(), 2) for part in rows.split(count)]
        assert torch.equal(torch.cat(parts), alone), count


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_outputs", [5, 50, 4096])
def test_the_largest_of_a_product_is_the_first_of_its_largest(
    num_outputs: int, num_threads: int
) -> None:
    """Every row of the weight is there three times, so each of its outputs is, too."""
    weight = random(num_outputs, 64).repeat(3, 1)
    matrix, rows = (
        PackedMatrix(weight, random(num_outputs, seed=1).repeat(3)),
        random(40, 64, seed=2),
    )
    for count in (1, 2, 3, 16, 17, 40):
        some = rows[:count].contiguous()
        expected = matrix(some, num_threads).numpy().argmax(-1)
        assert list(matrix.largest(some, num_threads)) == expected.tolist()
    assert expected.max() < num_outputs


def test_logits_that_are_changed_behind_the_product_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = on_native()
    assert target.largest_logits is not None
    monkeypatch.setattr(target._output_layer, "softcap", 30.0)
    assert target.largest_logits is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@torch.inference_mode()
def test_ids_are_embedded_as_they_are(dtype: torch.dtype) -> None:
    target = on_native()
    assert isinstance(target, NativeTarget)
    weight = random(target.vocab_size, target.hidden_size).to(dtype)
    decoder = target._decoder
    decoder._embedding = EmbeddingRows(weight)
    ids, positions = torch.tensor([[1, 3, 0], [2, 2, 5]]), torch.arange(3).expand(2, -1)
    among = causal_among(2, 3, target.device)
    by_ids = decoder.run_ids(ids, positions, among, target.new_cache(2, 1))
    hidden = weight[ids].float()
    decoder.run(hidden, positions, among, target.new_cache(2, 1))
    assert torch.equal(by_ids, hidden)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks where there are threads
def test_a_forked_process_has_threads_of_its_own() -> None:
    matrix, rows = PackedMatrix(random(512, 320)), random(5, 320, seed=3)
    product = matrix(rows, 2)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if torch.equal(matrix(rows, 2), product) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number_format", FORMATS)
@torch.inference_mode()
def test_a_processor_without_tiles_computes_the_same_bits(
    number_format: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weight, bias, rows = random(96, 320), random(96, seed=1), random(40, 320, seed=3)
    rows[7] *= 1e-20  # small numbers whose products vanish
    product = PackedMatrix(weight, bias, number_format=number_format)(rows, 2)
    ids = torch.randint(8, (1, 200), generator=torch.Generator().manual_seed(2))
    states = answer(with_heads_of(64, number_format), ids)
    monkeypatch.setattr(library, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(library, "_FLAGS", (*library._FLAGS, "-mno-amx-int8", "-mno-amx-bf16"))
    library.kernels.cache_clear()
    try:
        matrix = PackedMatrix(weight, bias, number_format=number_format)
        assert torch.equal(matrix(rows, 2), product)
        for count in (1, 2, 3, 4, 5, 17):
            assert torch.equal(matrix(rows[:count].contiguous(), 2), product[:count])
        assert torch.equal(answer(with_heads_of(64, number_format), ids), states)
    finally:
        library.kernels.cache_clear()


@pytest.mark.parametrize("number_format", FORMATS)
@torch.inference_mode()
def test_any_number_of_threads_computes_the_same_bits(number_format: str) -> None:
    """Fewer threads than tasks of a stage, as many, and more than there are."""
    ids = torch.randint(8, (1, 200), generator=torch.Generator().manual_seed(2))
    before = torch.get_num_threads()
    answers = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            answers.append(answer(with_heads_of(64, number_format), ids))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(states, answers[0]) for states in answers[1:])


def answer(target: TargetModel, ids: torch.Tensor) -> torch.Tensor:
    """Hidden states of a prompt, of a few rows behind it, and of one."""
    cache = target.new_cache(1, 1)
    states = list(target.prefill(ids, cache))
    for count in (5, 1):
        positions = cache.length + torch.arange(count)[None]
        among = causal_among(1, count, target.device)
        states.append(target.forward(ids[:, :count], positions, among, cache))
        cache.advance([count])
    return torch.cat(states, 1)


@pytest.mark.parametrize("size", [1, 15, 16, 100, 4096, 4097, 50000])
def test_root_signals_are_those_of_the_distribution(size: int) -> None:
    target = on_native()
    logits = 5 * random(3, size)
    logits[1, ::3] = -math.inf  # ruled out; the last of one, perhaps
    logits[1, -1] = 2.0
    logits[2, size // 2] = 200.0  # nothing else has a chance
    signals = target.root_signals(logits)
    assert torch.allclose(signals, root_signals(logits), rtol=1e-5, atol=1e-5)
    assert torch.equal(target.root_signals(logits[1:2]), signals[1:2])


def test_noise_is_that_of_the_definition() -> None:
    noise = on_native().gumbel_noise
    assert noise is not None
    seeds, positions = torch.tensor([0, 42, 2**63 - 1]), torch.tensor([0, 7, 100_000])
    for size in (1, 5, 16, 49_152, 100_003):
        found, expected = noise(seeds, positions, size), gumbel_noise(seeds, positions, size)
        assert torch.allclose(found, expected, rtol=2e-6, atol=2e-6)
        assert torch.equal(found, noise(seeds, positions, 100_003)[:, :size])
    many = torch.arange(200)
    found, expected = noise(many, many, 50_000), gumbel_noise(many, many, 50_000)
    assert torch.equal(found.argmax(-1), expected.argmax(-1))
    assert (found - expected).abs().max() < 1e-5  # the smallest, of uniforms next to 1, among them


@pytest.mark.parametrize("number_format", FORMATS)
def test_no_rows_have_no_outputs(number_format: str) -> None:
    matrix = PackedMatrix(random(32, 64), number_format=number_format)
    assert matrix(torch.zeros(0, 64), 2).shape == (0, 32)
    assert len(matrix.largest(torch.zeros(0, 64), 2)) == 0


def test_rows_of_zeros_and_of_large_numbers() -> None:
    matrix = PackedMatrix(random(32, 64))
    rows = torch.stack([torch.zeros(64), 1e20 * random(64), 1e-20 * random(64)])
    product = matrix(rows, 1)
    assert product.isfinite().all()
    assert not product[0].any()
    assert product[1].abs().max() > 1e19


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_it_passes_the_self_check(arch: str, number_format: str) -> None:
    self_check(on_native(arch, number_format))


def test_a_passed_self_check_stands_for_this_model_and_this_code_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked: list[object] = []
    monkeypatch.setattr(load, "run_self_check", checked.append)
    monkeypatch.setattr(target_module, "kernels_folder", lambda: tmp_path)

    def checks_of(number_format: str = "int8", **changes: object) -> int:
        checked.clear()
        plain = TargetModel.from_transformers(tiny_model(**changes))
        on_runtime(plain, "native", number_format, load._check_once, silent)
        return len(checked)

    assert [checks_of(), checks_of()] == [1, 0]
    assert checks_of("bfloat16") == 1
    assert checks_of(seed=1) == 1
    assert checks_of(rms_norm_eps=0.1) == 1
    monkeypatch.setattr(target_module, "code_digest", lambda: "other code")
    assert [checks_of(), checks_of()] == [1, 0]


def test_weights_are_packed_by_all_threads_and_made_ready_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[tuple[int, int]] = []

    class Watched(PackedMatrix):
        def __init__(self, *args: Any, **named: Any) -> None:
            threads.append((torch.get_num_threads(), args[2]))
            super().__init__(*args, **named)

    for room in (weights, target_module):
        monkeypatch.setattr(room, "PackedMatrix", Watched)
    torch.set_num_threads(3)
    try:
        NativeTarget(TargetModel.from_transformers(tiny_model()), "int8", silent)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)
    assert set(threads) == {(1, 3)}


@pytest.mark.parametrize(("number_format", "limit"), [("int8", 0.05), ("bfloat16", 0.03)])
@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
@torch.inference_mode()
def test_hidden_states_are_near_those_of_pytorch(
    arch: str, number_format: str, limit: float
) -> None:
    ids = torch.randint(8, (1, 150), generator=torch.Generator().manual_seed(1))
    states = []
    for target in (tiny(arch), on_native(arch, number_format)):
        states.append(torch.cat(list(target.prefill(ids, target.new_cache(1, 160))), 1))
    exact, native = states
    assert (exact - native).abs().mean() < limit * exact.std()


def with_heads_of(size: int, number_format: str = "int8", length: int = 8192) -> NativeTarget:
    """A tiny model on the runtime; of 16 numbers a head is added up by vectors, of 64 by tiles."""
    model = tiny_model(
        hidden_size=8 * size, num_attention_heads=8, num_key_value_heads=2, max_length=length
    )
    return NativeTarget(TargetModel.from_transformers(model, name="tiny"), number_format, silent)


@pytest.mark.parametrize("number_format", FORMATS)
@pytest.mark.parametrize("size", [16, 64])
@torch.inference_mode()
def test_an_accepted_path_has_the_bits_of_plain_decoding_at_any_length(
    size: int, number_format: str
) -> None:
    target = with_heads_of(size, number_format)
    generator = torch.Generator().manual_seed(4)
    for length in (1, 2, 15, 16, 17, 31, 127, 128, 129, 300, 511, 1025, 5000):
        one_by_one, in_trees = (text(target, length) for _ in range(2))
        for _ in range(2):
            nodes = torch.randint(8, (1, TREE.num_nodes), generator=generator)
            buffers = tree_buffers((TREE,), target.device)
            start = in_trees.length
            rows = target.forward(nodes, start + buffers.depths, buffers.mask, in_trees)[:, SLOTS]
            in_trees.keep(torch.tensor([SLOTS]), [len(SLOTS)])
            for place, slot in enumerate(SLOTS):
                position = torch.tensor([[start + place]])
                among = causal_among(1, 1, target.device)
                row = target.forward(nodes[:, [slot]], position, among, one_by_one)
                one_by_one.advance([1])
                assert torch.equal(row[:, 0], rows[:, place]), (length, place)


def text(target: TargetModel, length: int) -> NativeCache:
    """A cache of random rows."""
    cache = target.new_cache(1, 1)
    assert isinstance(cache, NativeCache)
    shape = target.layout[0]
    size = target.num_layers, 1, shape.num_kv_heads, length, shape.key_dim
    rows = torch.stack([random(*size), random(*size, seed=1)])
    cache.offer_rows(OfferedRows(rows.bfloat16()))
    cache.advance([length])
    return cache


@pytest.mark.parametrize("number_format", FORMATS)
@torch.inference_mode()
def test_a_prompt_may_come_in_pieces(number_format: str) -> None:
    target = on_native(number_format=number_format, length=1024)
    ids = torch.randint(8, (1, 200), generator=torch.Generator().manual_seed(2))
    whole = torch.cat(list(target.prefill(ids, target.new_cache(1, 1))), 1)
    for size in (1, 3, 16, 50):
        cache = target.new_cache(1, 1)
        pieces = [part for some in ids.split(size, 1) for part in target.prefill(some, cache)]
        assert torch.equal(torch.cat(pieces, 1), whole), size


@torch.inference_mode()
def test_rows_that_move_take_their_keys_along() -> None:
    """Blocks of keys are moved whole, the last one, too, which is not full."""
    target = on_native(length=1024)
    ids = torch.randint(8, (3, 45), generator=torch.Generator().manual_seed(3))
    cache = target.new_cache(1, 1)
    for row in range(3):
        if row:
            cache.add_row()
        for _ in target.prefill(ids[row : row + 1, : 20 + 9 * row], cache.view(row, row + 1)):
            pass
    cache.copy_row(2, 0)
    cache.truncate(2, 0)
    view = cache.view(0, 1)
    assert view.length == 38
    alone = target.new_cache(1, 1)
    for _ in target.prefill(ids[2:, :38], alone):
        pass
    one = causal_among(1, 1, target.device)
    steps = [target.forward(ids[:1, :1], torch.tensor([[38]]), one, each) for each in (view, alone)]
    assert torch.equal(*steps)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "its activation is gelu, not silu"),
        ({"intermediate_size": 96}, "are not multiples of 64"),
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
            "its rotary frequencies change with the length",
        ),
    ],
)
def test_another_kind_of_model_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    target = TargetModel.from_transformers(tiny_model(**changes))
    with pytest.raises(ModelRefused, match=message):
        NativeTarget(target, "int8", silent)


def test_a_processor_without_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_ABILITIES", ("avx512f", "amx_fp1024"))
    library.kernels.cache_clear()
    try:
        with pytest.raises(BadInput, match="the processor lacks amx_fp1024; use another --runtime"):
            library.kernels()
    finally:
        library.kernels.cache_clear()


def test_an_installed_package_has_the_sources() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["entmtp.target.runtimes.native"]
    packaged = {path for pattern in patterns for path in library._FOLDER.glob(pattern)}
    others = {path for path in library._FOLDER.iterdir() if path.suffix != ".py"}
    assert packaged == {path for path in others if path.is_file()}


def test_a_failed_compilation_is_one_line_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(library, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(library, "_FLAGS", ("--no-such-flag",))
    library.kernels.cache_clear()
    try:
        with pytest.raises(BadInput, match=r"cannot compile the kernels .*no-such-flag"):
            library.kernels()
    finally:
        library.kernels.cache_clear()
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]
