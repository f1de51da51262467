"""The best static tree: acceptance over measured time."""

from __future__ import annotations

import json

import pytest

from draft_heads import exact_heads, random_heads
from entmtp.bench import Task, best_tree, choose_tree, try_trees
from entmtp.bench.report import choices_json
from entmtp.engine import Engine
from entmtp.heads import StaticTree
from entmtp.target import TargetModel
from entmtp.trees import Tree, chain, full
from fixtures import ring, ring_order, tiny, tiny_model
from runtimes import needs_openvino, on_openvino

CANDIDATES = (
    StaticTree(chain(1), 1.5),
    StaticTree(chain(3), 2.0),
    StaticTree(full(2, 3), 2.2),
)


TASK = Task("x", "", (1, 2))


@pytest.mark.parametrize(
    ("seconds", "best"),
    [([1.0, 1.0, 1.0, 1.0], 2), ([1.0, 1.1, 1.2, 2.0], 1), ([1.0, 2.0, 4.0, 8.0], 0)],
)
def test_the_most_tokens_a_second_win(
    seconds: list[float], best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(best_tree, "step_seconds", lambda *_: seconds)
    target = tiny()
    choice = choose_tree(target, random_heads(target, "hydra"), CANDIDATES, [TASK])
    row = choice.table[best]
    assert choice.best is row
    assert choice.expected_speedup == pytest.approx(
        CANDIDATES[best].mean_acceptance_length * seconds[0] / seconds[best + 1]
    )


@pytest.mark.parametrize("kind", ["medusa", "hydra++"])
def test_steps_are_timed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_tree, "NUM_ROUNDS", 1)
    target = tiny()
    choice = choose_tree(target, random_heads(target, kind), CANDIDATES, [TASK])
    assert choice.plain_step_seconds > 0
    assert all(row.step_seconds > 0 for row in choice.table)
    assert [row.tree for row in choice.table] == [entry.tree for entry in CANDIDATES]


@pytest.mark.parametrize(("num_tokens", "is_timed"), [(2, True), (11, False)])
def test_short_answers_are_timed_and_what_is_not_is_null(num_tokens: int, is_timed: bool) -> None:
    """Every token ends the answer; 11 tokens fill a context of 12 but for one."""
    model = tiny_model(max_length=12, eos_token_id=list(range(8)))
    target = TargetModel.from_transformers(model)
    task = Task("x", "", tuple(i % 8 for i in range(num_tokens)))
    choice = choose_tree(target, random_heads(target, "hydra"), CANDIDATES, [task])
    shown = json.loads(json.dumps(choices_json({"hydra": choice}), allow_nan=False))["hydra"]
    assert (shown["plain_step_milliseconds"] is not None) == is_timed
    assert all((row["step_milliseconds"] is not None) == is_timed for row in shown["candidates"])


def test_heads_without_trees_are_tried() -> None:
    target = ring()
    heads = exact_heads(target, ring_order(target.vocab_size), "medusa", 2)
    tried = try_trees(target, heads, [TASK])
    trees: list[Tree] = [entry.tree for entry in tried]
    assert trees[:2] == [chain(1), chain(2)]
    assert trees[2].depth == 2
    # One token of 32 comes from the prompt; the last step may be cut.
    assert tried[0].mean_acceptance_length == pytest.approx(31 / 16)
    assert tried[1].mean_acceptance_length == pytest.approx(31 / 11)


SEVEN = tuple(StaticTree(chain(4).truncate(d), 1 + d / 10) for d in (1, 2, 3, 4)) + tuple(
    StaticTree(full(width, 2), 1.4 + width / 50) for width in (2, 3, 4)
)


@pytest.mark.parametrize(("best", "room"), [(0, 3), (3, 3), (5, 4), (6, 5), (6, 8), (2, None)])
def test_heats_find_the_best_however_slow_the_machine_is_in_one(
    best: int, room: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TargetModel, "max_pinned_rows", room)
    quickest = SEVEN[best].tree
    paces = iter([3.0, 1.0, 2.0, 5.0, 4.0, 1.5])
    met: list[int] = []

    def seconds(engines: list[Engine], _: object) -> list[float]:
        pace = next(paces)
        trees = [engine.policy.trees[0] for engine in engines]
        met.append(len({tree.num_nodes for tree in trees}))
        assert not trees[0].depth
        return [pace * (0.5 if tree == quickest else 1.0) for tree in trees]

    monkeypatch.setattr(best_tree, "step_seconds", seconds)
    target = tiny()
    choice = choose_tree(target, random_heads(target, "hydra"), SEVEN, [TASK])
    assert choice.best.tree == quickest
    assert choice.expected_speedup == pytest.approx(2 * SEVEN[best].mean_acceptance_length)
    assert [row.tree for row in choice.table] == [entry.tree for entry in SEVEN]
    assert {round(row.step_seconds / choice.plain_step_seconds, 9) for row in choice.table} == {
        0.5,
        1.0,
    }
    assert max(met) <= (room or 8)
    assert len(met) == {3: 5, 4: 4, 5: 3, 8: 1, None: 1}[room]


@needs_openvino
def test_every_tree_is_timed_and_measured_in_a_copy_of_its_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With more sizes than a runtime keeps ready."""
    target = on_openvino()
    heads = random_heads(target, "medusa")
    trees = [chain(4).truncate(d) for d in range(1, 5)] + [full(w, 2) for w in range(2, 8)]
    candidates = [StaticTree(tree, 1.5) for tree in trees]
    timed: set[int] = set()

    def seconds(engines: list[Engine], _: object) -> list[float]:
        rows = {engine.policy.trees[0].num_nodes for engine in engines}
        assert pinned_rows(target) == {max(2, one) for one in rows}
        timed.update(rows)
        return [1.0] * len(engines)

    monkeypatch.setattr(best_tree, "step_seconds", seconds)
    choose_tree(target, heads, candidates, [TASK])
    assert timed == {1, *(tree.num_nodes for tree in trees)}
    assert pinned_rows(target) == set()
    sizes = target.max_pinned_rows
    target.make_room(len(trees))
    for tree in trees:
        target.warm_up({tree.num_nodes})
    assert pinned_rows(target) == {tree.num_nodes for tree in trees}
    target.make_room()
    assert target.max_pinned_rows == sizes


def pinned_rows(target: TargetModel) -> set[int]:
    return {rows for _, rows in target._body.pinned}
