"""A comparison by source, and against one method."""

from __future__ import annotations

import pytest

from draft_heads import exact_heads
from entmtp.bench import Method, Task, compare
from entmtp.bench.breakdown import by_source, methods_json, paired_ratios, source_of
from entmtp.engine import Engine, GenerationParams
from entmtp.scheduler import StaticPolicy
from entmtp.trees import chain
from fixtures import ring, ring_order

VOCAB_SIZE = 12


@pytest.mark.parametrize(
    ("prompt_id", "kind", "source"),
    [
        ("HumanEval/7", "code", "humaneval"),
        ("gsm8k-test/12", "", "gsm8k"),
        ("mt-bench/81", "", "mt_bench"),
        ("is-palindrome", "code", "code"),
        ("7", "", "other"),
    ],
)
def test_sources(prompt_id: str, kind: str, source: str) -> None:
    assert source_of(Task(prompt_id, kind, (1,))) == source


def test_sources_add_up_and_ratios_are_of_the_same_prompt() -> None:
    target = ring(VOCAB_SIZE)
    heads = exact_heads(target, ring_order(VOCAB_SIZE), "medusa", 4)
    methods = [
        Method("plain", Engine(target)),
        Method("hydra-best", Engine(target, heads, StaticPolicy(chain(1)))),
        Method("entmtp-tau", Engine(target, heads, StaticPolicy(chain(3)))),
    ]
    names = ("HumanEval/0", "mt-bench/1", "HumanEval/2")
    tasks = [Task(name, "", (place, place + 1)) for place, name in enumerate(names)]
    comparison = compare(methods, tasks, GenerationParams(max_tokens=9))
    sources = by_source(comparison, methods, tasks)
    assert [(one.name, one.figures[0].num_prompts) for one in sources] == [
        ("humaneval", 2),
        ("mt_bench", 1),
    ]
    for place, whole in enumerate(comparison.figures):
        for name in ("num_tokens", "num_steps", "num_identical", "num_accepted_tokens"):
            parts = [getattr(one.figures[place], name) for one in sources]
            assert sum(parts) == getattr(whole, name)
    runs = comparison.runs
    ratios = paired_ratios(runs)
    one = sources[1].ratios["entmtp-tau"]
    ours, theirs = (runs[name][1].tokens_per_second for name in ("entmtp-tau", "hydra-best"))
    assert ours
    assert theirs
    assert one["ratio"] == pytest.approx(ours / theirs)
    assert one["ratio_low"] is None
    whole = ratios["entmtp-tau"]
    assert whole["ratio_low"] <= whole["ratio"] <= whole["ratio_high"]  # type: ignore[operator]
    assert ratios["hydra-best"]["ratio"] == 1.0
    rows = methods_json(comparison.figures, ratios, {"plain": {"perplexity": 2.0}})
    assert rows[2]["against_hydra_best"] == whole
    assert rows[0]["perplexity"] == 2.0
    without = {name: own for name, own in runs.items() if name != "hydra-best"}
    assert paired_ratios(without) == {}
    assert methods_json(comparison.figures, {})[2]["against_hydra_best"] is None


def test_P08_parts_of_a_step_add_up_to_it() -> None:
    target = ring(VOCAB_SIZE)
    comparison = compare(
        [Method("plain", Engine(target))], [Task("x", "", (0, 1))], GenerationParams(max_tokens=9)
    )
    one = comparison.figures[0]
    parts = (one.draft_milliseconds, one.verify_milliseconds, one.host_milliseconds)
    assert all(part is not None and part >= 0 for part in parts)
    assert sum(part or 0 for part in parts) == pytest.approx(one.step_milliseconds)
    seconds = sum(run.decode_seconds for run in comparison.runs["plain"])
    assert one.step_milliseconds == pytest.approx(1000 * seconds / 8)
