"""The best static tree: acceptance over measured time."""

from __future__ import annotations

import json

import pytest

from draft_heads import exact_heads, random_heads
from entmtp.bench import Task, best_tree, choose_tree, try_trees
from entmtp.bench.report import choices_json
from entmtp.heads import StaticTree
from entmtp.target import TargetModel
from entmtp.trees import Tree, chain, full
from fixtures import ring, ring_order, tiny, tiny_model

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
