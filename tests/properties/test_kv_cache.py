"""The cache's verbs, in any order, against lists of lists."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from entmtp.target import KVCache, LayerShape

# Two kinds of layers, mixed: they live in two tensors each.
LAYOUT = [LayerShape(2, 3, 3), LayerShape(1, 2, 4), LayerShape(2, 3, 3)]
MOST_ROWS = 4


class CacheMachine(RuleBasedStateMachine):
    """Every token is a number; each layer's keys hold it, and the values its negative."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = KVCache.allocate(LAYOUT, 1, 2, dtype=torch.float32, device=torch.device("cpu"))
        self.rows: list[list[int]] = [[]]
        self.next_token = 1

    def write(self, start: int, stop: int, count: int) -> torch.Tensor:
        """One forward of some of the sequences: the tokens `[B, T]` that it wrote."""
        view = self.cache.view(start, stop)
        view.reserve(max(view.lengths) + count)
        shape = (stop - start, count)
        tokens = torch.arange(self.next_token, self.next_token + shape[0] * count).view(shape)
        self.next_token += tokens.numel()
        for index, layer in enumerate(LAYOUT):
            keys = tokens[:, None, :, None].float().expand(-1, layer.num_kv_heads, -1, -1)
            view.update(
                keys.expand(-1, -1, -1, layer.key_dim) + index,
                -keys.expand(-1, -1, -1, layer.value_dim) - index,
                index,
            )
        return tokens

    @rule(data=st.data(), count=st.integers(1, 6))
    def step(self, data: st.DataObject, count: int) -> None:
        """A tree for each of the first sequences; some rows of it are kept, or none."""
        stop = data.draw(st.integers(1, len(self.rows)), label="sequences")
        tokens = self.write(0, stop, count)
        picks = st.lists(st.integers(1, max(1, count - 1)), unique=True, max_size=count - 1)
        kept = [[0, *sorted(data.draw(picks))] for _ in range(stop)]
        counts = [data.draw(st.sampled_from([0, len(slots), len(slots)])) for slots in kept]
        widest = max(map(len, kept))
        slots = torch.tensor([row + row[-1:] * (widest - len(row)) for row in kept])
        self.cache.view(0, stop).keep(slots, counts)
        for row, number in enumerate(counts):
            self.rows[row] += tokens[row, kept[row][:number]].tolist()

    @rule(data=st.data(), count=st.integers(1, 5))
    def prefill(self, data: st.DataObject, count: int) -> None:
        row = data.draw(st.integers(0, len(self.rows) - 1))
        tokens = self.write(row, row + 1, count)
        self.cache.view(row, row + 1).advance([count])
        self.rows[row] += tokens[0].tolist()

    @precondition(lambda self: len(self.rows) < MOST_ROWS)
    @rule()
    def add_row(self) -> None:
        self.cache.add_row()
        self.rows.append([])

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(self.rows) - 1))
        length = data.draw(st.integers(0, len(self.rows[row])))
        self.cache.truncate(row, length)
        del self.rows[row][length:]

    @rule(data=st.data())
    def copy_row(self, data: st.DataObject) -> None:
        places = st.integers(0, len(self.rows) - 1)
        source, target = data.draw(places), data.draw(places)
        self.cache.copy_row(source, target)
        self.rows[target] = list(self.rows[source])

    @rule(capacity=st.integers(1, 40))
    def reserve(self, capacity: int) -> None:
        before = self.cache.capacity
        self.cache.reserve(capacity)
        assert self.cache.capacity >= max(capacity, before)

    @invariant()
    def holds_what_was_committed(self) -> None:
        assert self.cache.lengths == [len(row) for row in self.rows]
        assert self.cache.batch_size == len(self.rows)
        assert all(self.cache.capacity >= len(row) for row in self.rows)
        for index in range(len(LAYOUT)):
            keys, values = self.cache.layer(index)
            for place, row in enumerate(self.rows):
                wanted = torch.tensor(row, dtype=torch.float32) + index
                assert bool((keys[place, :, : len(row)] == wanted[:, None]).all())
                assert bool((values[place, :, : len(row)] == -wanted[:, None]).all())
                # A masked row is multiplied by 0, which garbage that is no number survives.
                assert bool(keys[place].isfinite().all() and values[place].isfinite().all())


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=40, stateful_step_count=25)
