"""Every processor against `transformers`' own, alone and all at once; for a node and for trees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entmtp.decode import History, Past, Record, Sampler, Sampling
from entmtp.decode.history import Nodes, tree_nodes
from entmtp.decode.processors import make_processor
from entmtp.trees import Tree, chain, full, tree_buffers
from reference import processed

CPU = torch.device("cpu")
VOCAB = 9
PROMPT, GENERATED = [3, 1, 4, 1, 5], [2, 2, 7, 1]
ALL = Sampling(
    repetition_penalty=1.4,
    presence_penalty=0.7,
    frequency_penalty=-0.3,
    logit_bias=((2, 1.5), (8, -3.0)),
    banned_ids=((6,), (7, 1, 0), (1, 3), (5, 2, 2, 7, 1, 4), (9 - 1, 8)),
    delays=((1, 5), (5, 3)),
)
ONE_BY_ONE = {
    "nothing": Sampling(),
    "repetition": Sampling(repetition_penalty=1.7),
    "less repetition": Sampling(repetition_penalty=0.5),
    "presence": Sampling(presence_penalty=2.0),
    "frequency": Sampling(frequency_penalty=1.1),
    "negative frequency": Sampling(frequency_penalty=-2.0),
    "bias": Sampling(logit_bias=((0, -100.0), (4, 2.25))),
    "banned id": Sampling(banned_ids=((2,), (0,))),
    "banned words": Sampling(banned_ids=((1, 3), (7, 1, 5), (2, 1, 6), (7, 2))),
    "a word longer than the text": Sampling(banned_ids=(tuple([4] * 40),)),
    "early": Sampling(delays=((3, 5), (4, 4), (5, 99))),
    "all": ALL,
    "all, drawn": replace(ALL, temperature=0.9, top_k=4, seed=1),
}


def history(prompt: list[int] = PROMPT, generated: list[int] = GENERATED) -> Record:
    record = Record.of(prompt)
    record.ids.extend(generated)
    return record


def some_logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def scores_of(
    rows: list[Sampling], records: list[Record], drawn: list[list[int]], logits: torch.Tensor
) -> torch.Tensor:
    """Processed logits `[B, V]` behind the records and, for each row alike, what was drawn."""
    process = make_processor(rows, CPU)
    if process is None:
        return logits
    past = Past(History.of(records, CPU), [torch.tensor([one] * len(rows)) for one in drawn])
    lengths = [len(record.ids) + len(drawn) for record in records]
    return process(logits[:, None], past.nodes(torch.tensor(lengths)))[:, 0]


@pytest.mark.parametrize("num_drawn", [0, 1, 2])
@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_processors_are_those_of_transformers(name: str, num_drawn: int) -> None:
    sampling, record = ONE_BY_ONE[name], history()
    for first in range(VOCAB):
        drawn = [first, 3][:num_drawn]
        logits = some_logits(1, seed=first)
        ids = torch.tensor([[*record.ids, *drawn]])
        expected = processed(ids, logits, sampling, len(PROMPT))
        torch.testing.assert_close(scores_of([sampling], [record], drawn, logits), expected)


def test_what_was_drawn_in_the_step_counts() -> None:
    """Each processor must see the tokens of its own step."""
    record, logits = history([0], [1]), some_logits(1)
    changed = {
        "repetition": Sampling(repetition_penalty=1.7),
        "presence": Sampling(presence_penalty=2.0),
        "frequency": Sampling(frequency_penalty=1.1),
        "word": Sampling(banned_ids=((1, 2, 3),)),
        "early": Sampling(delays=((5, 2),)),
    }
    for name, sampling in changed.items():
        before = scores_of([sampling], [record], [], logits)
        after = scores_of([sampling], [record], [2], logits)
        assert not torch.equal(before, after), name


def test_no_processor_where_nobody_asks() -> None:
    rows = [Sampling(), Sampling(0.7, 3, 0.9, 4, min_p=0.1)]
    assert make_processor(rows, CPU) is None
    assert not Sampler(rows, CPU).looks_back
    assert not any(row.is_processed for row in rows)
    for name, sampling in ONE_BY_ONE.items():
        assert sampling.is_processed is (name != "nothing")


some_rows = st.lists(st.sampled_from(list(ONE_BY_ONE.values())), min_size=1, max_size=5)
some_ids = st.lists(st.integers(0, VOCAB - 1), min_size=0, max_size=7)


@given(some_rows, st.data(), st.integers(0, 9))
@settings(max_examples=40, deadline=None)
def test_rows_do_not_know_their_neighbours(
    rows: list[Sampling], data: st.DataObject, seed: int
) -> None:
    records = [history([4, *data.draw(some_ids)], data.draw(some_ids)) for _ in rows]
    drawn, logits = data.draw(some_ids), some_logits(len(rows), seed)
    together = scores_of(rows, records, drawn, logits)
    for index, (row, record) in enumerate(zip(rows, records, strict=True)):
        alone = scores_of([row], [record], drawn, logits[index : index + 1])
        assert torch.equal(together[index], alone[0])


TREES = (full(2, 3), Tree.from_paths([(1,), (0,), (1, 3), (1, 3, 2)]), chain(2), chain(0))


def test_a_tree_of_nodes_is_each_node_with_its_own_path() -> None:
    buffers = tree_buffers(TREES, CPU)
    records = [history(), history([8], [2]), history([1, 2, 3], [5, 5]), history([6, 7], [0])]
    rows = [ALL, ONE_BY_ONE["banned words"], ONE_BY_ONE["repetition"], ALL]
    generator = torch.Generator().manual_seed(0)
    draft_ids = torch.randint(VOCAB, (4, buffers.num_slots), generator=generator)
    draft_ids[:, 0] = torch.tensor([record.ids[-1] for record in records])
    logits = torch.randn(4, buffers.num_slots, VOCAB, generator=generator)
    first = torch.tensor([len(record.ids) for record in records])
    process = make_processor(rows, CPU)
    assert process is not None
    nodes: Nodes = tree_nodes(History.of(records, CPU), draft_ids, buffers, first)
    together = process(logits, nodes)
    for row, slot in buffers.valid.nonzero().tolist():
        depth = int(buffers.depths[row, slot])
        path = draft_ids[row, buffers.ancestors[row, slot, 1 : depth + 1]].tolist()
        alone = scores_of([rows[row]], [records[row]], path, logits[row, slot][None])
        assert torch.equal(together[row, slot], alone[0])


def test_a_packed_record_may_grow_afterwards() -> None:
    record = history()
    packed = History.of([record], CPU).ids.clone()
    record.ids.extend(range(500))
    assert packed.tolist() == [[*PROMPT, *GENERATED]]
