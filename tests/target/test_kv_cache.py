"""The cache's verbs against lists of rows, and its memory."""

from __future__ import annotations

import random

import pytest
import torch

from entmtp.target import KVCache, LayerShape, TargetModel
from entmtp.target.model import PREFILL_CHUNK
from fixtures import tiny, tiny_model

# Two kinds of layers, mixed: they live in two tensors each.
LAYOUT = [LayerShape(2, 4, 4), LayerShape(1, 3, 5), LayerShape(2, 4, 4)]


def new_cache(batch_size: int = 3, capacity: int = 8) -> KVCache:
    return KVCache.allocate(
        LAYOUT, batch_size, capacity, dtype=torch.float32, device=torch.device("cpu")
    )


def write(cache: KVCache, tokens: torch.Tensor) -> None:
    """One forward of `tokens` `[B, T]`: every layer's rows hold the token's number."""
    cache.reserve(max(cache.lengths) + tokens.shape[1])
    for index, shape in enumerate(LAYOUT):
        keys = tokens[:, None, :, None].float().expand(-1, shape.num_kv_heads, -1, shape.key_dim)
        values = (
            -tokens[:, None, :, None].float().expand(-1, shape.num_kv_heads, -1, shape.value_dim)
        )
        used = max(cache.lengths) + tokens.shape[1]
        got_keys, got_values = cache.update(keys + index, values - index, index)
        assert got_keys.shape == (len(tokens), shape.num_kv_heads, used, shape.key_dim)
        assert got_values.shape == (len(tokens), shape.num_kv_heads, used, shape.value_dim)


def assert_holds(cache: KVCache, expected: list[list[int]]) -> None:
    assert cache.lengths == [len(row) for row in expected]
    for index in range(len(LAYOUT)):
        keys, values = cache.layer(index)
        for row, tokens in enumerate(expected):
            wanted = torch.tensor(tokens, dtype=torch.float32) + index
            assert torch.equal(keys[row, 0, : len(tokens), 0], wanted)
            assert torch.equal(values[row, -1, : len(tokens), -1], -wanted)


def test_keep_moves_accepted_rows_to_the_front() -> None:
    cache = new_cache()
    write(cache, torch.tensor([[1, 2], [3, 4], [5, 6]]))
    cache.advance([2, 1, 0])
    write(cache, torch.tensor([range(10, 16), range(20, 26), range(30, 36)]))
    cache.keep(torch.tensor([[0, 2, 5], [0, 1, 2], [0, 4, 4]]), [3, 1, 2])
    assert_holds(cache, [[1, 2, 10, 12, 15], [3, 20], [30, 34]])
    write(cache, torch.tensor([range(40, 44), range(50, 54), range(60, 64)]))
    cache.keep(torch.tensor([[0, 0], [0, 3], [0, 1]]), [0, 2, 2])
    assert_holds(cache, [[1, 2, 10, 12, 15], [3, 20, 50, 53], [30, 34, 60, 61]])


def test_a_row_that_is_taken_from_and_written_to() -> None:
    """Slots 1 and 2 are the aim of 2 and 3."""
    cache = new_cache(1)
    write(cache, torch.tensor([[1, 2, 3, 4]]))
    cache.keep(torch.tensor([[0, 2, 3]]), [3])
    assert_holds(cache, [[1, 3, 4]])


@pytest.mark.parametrize("seed", range(5))
def test_any_sequence_of_verbs(seed: int) -> None:
    """Rows come, step, are cut, leave, and the memory grows, as in a server."""
    dice, cache = random.Random(seed), new_cache(1, 2)
    expected: list[list[int]] = [[]]
    token = 0
    for _ in range(40):
        verb = dice.choice(["step", "step", "step", "add", "truncate", "leave", "prefill"])
        if verb == "step":
            count = dice.randint(1, 5)
            tokens = torch.arange(token, token + len(expected) * count).view(-1, count)
            token += tokens.numel()
            write(cache, tokens)
            kept = [
                [0, *sorted(dice.sample(range(1, count), dice.randint(0, count - 1)))]
                for _ in expected
            ]
            counts = [dice.choice([0, len(slots), len(slots)]) for slots in kept]
            widest = max(map(len, kept))
            slots = [row + row[-1:] * (widest - len(row)) for row in kept]
            cache.keep(torch.tensor(slots), counts)
            for row, places, number in zip(range(len(kept)), kept, counts, strict=True):
                expected[row] += tokens[row, places[:number]].tolist()
        elif verb == "add" and len(expected) < 5:
            cache.add_row()
            expected.append([])
        elif verb == "truncate":
            row = dice.randrange(len(expected))
            length = dice.randint(0, len(expected[row]))
            cache.truncate(row, length)
            del expected[row][length:]
        elif verb == "leave" and len(expected) > 1:
            row, last = dice.randrange(len(expected) - 1), len(expected) - 1
            cache.copy_row(last, row)
            cache.truncate(last, 0)
            expected[row], expected[last] = expected[last], []
        elif verb == "prefill":
            row = dice.randrange(len(expected))
            write(cache.view(row, row + 1), torch.tensor([[token, token + 1]]))
            cache.view(row, row + 1).advance([2])
            expected[row] += [token, token + 1]
            token += 2
        assert_holds(cache, expected)


def test_a_view_shares_memory_and_lengths() -> None:
    cache = new_cache()
    view = cache.view(1, 3)
    assert (view.batch_size, view.lengths, view.capacity) == (2, [0, 0], 8)
    write(view, torch.tensor([[1, 2], [3, 4]]))
    view.advance([1, 2])
    assert_holds(cache, [[], [1], [3, 4]])
    inner = view.view(1, 2)
    assert inner.length == 2
    inner.truncate(0, 1)
    assert_holds(cache, [[], [1], [3]])
    view.copy_row(1, 0)
    assert_holds(cache, [[], [3], [3]])


def test_memory_grows_by_doubling_and_views_follow() -> None:
    cache = new_cache(2, 4)
    view = cache.view(0, 2)
    num_bytes = cache.num_bytes
    assert num_bytes == 2 * 4 * 4 * (2 * 2 * (4 + 4) + (3 + 5))
    write(view, torch.tensor([[1, 2, 3], [4, 5, 6]]))
    view.advance([3, 2])
    cache.reserve(3)
    assert cache.capacity == 4
    write(view, torch.tensor([[7, 8], [9, 10]]))
    assert view.capacity == cache.capacity == 8
    assert cache.num_bytes == 2 * num_bytes
    view.advance([2, 0])
    assert_holds(cache, [[1, 2, 3, 7, 8], [4, 5]])
    cache.reserve(100)
    assert cache.capacity == 100
    assert_holds(cache, [[1, 2, 3, 7, 8], [4, 5]])


def test_only_the_whole_cache_grows() -> None:
    cache = new_cache()
    with pytest.raises(AssertionError, match="a view cannot add rows"):
        cache.view(0, 2).add_row()
    with pytest.raises(AssertionError, match="cannot add tokens"):
        cache.truncate(0, 1)


def test_many_sequences_that_join_move_the_memory_a_few_times_only() -> None:
    cache = new_cache()
    held = []  # so that no memory is used a second time
    for _ in range(64):
        cache.add_row()
        held.append(cache.layer(0)[0])
    assert len({keys.data_ptr() for keys in held}) < 16
    assert cache.num_bytes <= (1.25 * cache.batch_size + 1) * new_cache(batch_size=1).num_bytes


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_M01_memory_is_counted_by_key_heads(num_kv_heads: int) -> None:
    model = tiny_model(num_key_value_heads=num_kv_heads)
    cache = TargetModel.from_transformers(model).new_cache(2, 10)
    assert cache.num_bytes == 3 * 2 * 10 * num_kv_heads * (16 + 16) * 4


@torch.inference_mode()
def test_a_long_prompt_in_chunks_is_the_whole_prompt() -> None:
    target = tiny(max_length=1024)
    length = 2 * PREFILL_CHUNK + 37
    ids = torch.randint(8, (1, length), generator=torch.Generator().manual_seed(0))
    cache = target.new_cache(1, 8)
    hidden = torch.cat(list(target.prefill(ids, cache)), 1)
    assert cache.length == length
    whole = tiny_model(max_length=1024).model(input_ids=ids).last_hidden_state
    assert (hidden - whole).abs().max().item() < 1e-4


def test_places_of_unequal_lengths_are_made_once_a_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = new_cache()
    write(cache, torch.tensor([[1, 2], [3, 4], [5, 6]]))
    cache.advance([2, 1, 0])
    made = []
    plain = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *a, **k: made.append(a) or plain(*a, **k))
    rows = plain([range(10, 14), range(20, 24), range(30, 34)])
    write(cache, rows)
    assert len(made) == 1
    cache.advance([1, 2, 4])
    write(cache, rows + 100)
    assert len(made) == 2
    cache.advance([4, 4, 4])
    monkeypatch.undo()
    assert_holds(
        cache,
        [
            [1, 2, 10, 110, 111, 112, 113],
            [3, 20, 21, 120, 121, 122, 123],
            [30, 31, 32, 33, 130, 131, 132, 133],
        ],
    )
