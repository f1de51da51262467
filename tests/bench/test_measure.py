"""Cases P08 and P10, and how runs are paired."""

from __future__ import annotations

import pytest

from draft_heads import exact_heads, random_heads
from entmtp.bench import Method, Run, Task, compare, make_tasks, measure
from entmtp.data import Message, Prompt
from entmtp.engine import Engine, GenerationParams
from entmtp.errors import BadInput
from entmtp.measure import paired
from entmtp.scheduler import PlainPolicy, StaticPolicy
from entmtp.trees import ROOT, chain
from fixtures import BOS, ring, ring_order, script

VOCAB_SIZE = 12
TASKS = tuple(Task(f"ring-{start}", "", (start, start + 1)) for start in range(5))


def ring_methods(depth: int) -> list[Method]:
    target = ring(VOCAB_SIZE)
    heads = exact_heads(target, ring_order(VOCAB_SIZE), "medusa", depth)
    drafted = Method("hydra-best", Engine(target, heads, StaticPolicy(chain(depth))))
    return [Method("plain", Engine(target, policy=PlainPolicy())), drafted]


@pytest.mark.parametrize("depth", [1, 3, 4])
def test_P08_figures_are_those_of_the_saved_ids(depth: int) -> None:
    # One token comes from the prompt, the rest in full blocks of depth + 1.
    params = GenerationParams(max_tokens=1 + 4 * (depth + 1))
    comparison = compare(ring_methods(depth), TASKS, params)
    plain, drafted = comparison.figures
    assert plain.mean_acceptance_length == 1.0
    assert drafted.mean_acceptance_length == depth + 1
    assert drafted.num_steps == 4 * len(TASKS)
    assert drafted.num_accepted_tokens_per_pos == depth * [drafted.num_steps]
    assert drafted.num_identical == plain.num_identical == len(TASKS)
    report = comparison.to_json()
    assert "bonus token included" in report["settings"]["mean_acceptance_length"]
    for method in report["methods"]:
        runs = [run for run in report["runs"] if run["method"] == method["name"]]
        num_tokens = sum(len(run["token_ids"]) for run in runs)
        assert num_tokens == method["num_tokens"] == len(TASKS) * params.max_tokens
        seconds = sum(run["seconds"] for run in runs)
        assert method["tokens_per_second"] == pytest.approx(num_tokens / seconds)
        # The parts of a step lie within its time.
        for run in runs:
            parts = sum(run["step_seconds"].values())
            assert 0 < parts <= run["seconds"] - run["prefill_seconds"]


def test_P10_a_tree_of_nothing_is_plain_decoding() -> None:
    target = ring(VOCAB_SIZE)
    heads = random_heads(target, "hydra")
    rooted = Method("hydra-default", Engine(target, heads, StaticPolicy(ROOT)))
    plain = Method("plain", Engine(target, policy=PlainPolicy()))
    comparison = compare([plain, rooted], TASKS, GenerationParams(max_tokens=9))
    for name in ("num_tokens", "num_steps", "num_prompt_tokens", "mean_acceptance_length"):
        ours, theirs = (getattr(figures, name) for figures in comparison.figures)
        assert ours == theirs, name
    ours, theirs = (
        [(run.prompt_id, run.finish_reason, run.token_ids) for run in runs]
        for runs in comparison.runs.values()
    )
    assert ours == theirs
    # Both sides' settings, and what a reader needs to repeat them.
    assert {"max_tokens", "seed", "stop", "eos_ids", "temperature"} <= comparison.settings.keys()
    assert {"versions", "num_threads", "dtype", "load_average_before", "load_average_after"} <= (
        comparison.environment.keys()
    )


def test_every_prompt_meets_every_method_and_the_first_one_rotates() -> None:
    seen: list[tuple[str, str]] = []

    def on_run(run: Run) -> None:
        seen.append((run.prompt_id, run.method))

    methods = ring_methods(2)
    measure(methods, TASKS[:3], GenerationParams(max_tokens=2), on_run)
    assert seen == [
        ("ring-0", "plain"),
        ("ring-0", "hydra-best"),
        ("ring-1", "hydra-best"),
        ("ring-1", "plain"),
        ("ring-2", "plain"),
        ("ring-2", "hydra-best"),
    ]


def test_methods_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a second of the machine is a second of all."""
    steps: list[str] = []
    methods = ring_methods(2)
    names = {id(method.engine): method.name for method in methods}
    step = Engine.step

    def spy(self: Engine) -> None:
        steps.append(names[id(self)])
        step(self)

    monkeypatch.setattr(Engine, "step", spy)
    monkeypatch.setattr(paired, "STEPS_OF_A_TURN", 2)
    drafting, plain = paired.run_in_turn(methods, TASKS[0], GenerationParams(max_tokens=40), 0)
    rounds = [steps[start : start + 4] for start in range(0, 4 * 6, 4)]
    assert all(sorted(some) == 2 * ["hydra-best"] + 2 * ["plain"] for some in rounds)
    assert {some[0] for some in rounds} == {"hydra-best", "plain"}
    assert set(steps[2 * steps.count("hydra-best") + 2 :]) == {"plain"}
    assert drafting.token_ids == plain.token_ids
    assert all(0 < run.prefill_seconds < run.seconds for run in (drafting, plain))


def test_a_measurement_that_is_given_up_leaves_nothing_running() -> None:
    methods = ring_methods(2)
    ended = paired.run_in_turn(methods, TASKS[0], GenerationParams(max_tokens=40), 0)
    next(ended)
    ended.close()
    assert [method.engine.num_running for method in methods] == [0, 0]


def test_a_method_that_refuses_a_task_leaves_the_others_with_nothing() -> None:
    methods = ring_methods(2)
    none, params = Task("none", "", ()), GenerationParams(max_tokens=4)
    turns = paired.run_in_turn([methods[0]], none, params, 0)
    with pytest.raises(BadInput):
        next(turns)
    refused = [methods[0], Method("refused", methods[1].engine)]

    def refuse(*_: object) -> int:
        raise BadInput("no")

    refused[1].engine.add = refuse  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="no"):
        next(paired.run_in_turn(refused, TASKS[0], params, 0))
    assert methods[0].engine.num_waiting == methods[0].engine.num_running == 0


def test_the_warm_up_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    add = Engine.add

    def spy(self: Engine, prompt: object, params: GenerationParams) -> int:
        asked.append(params.max_tokens)
        return add(self, prompt, params)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "add", spy)
    runs = measure(ring_methods(2), TASKS[:1], GenerationParams(max_tokens=30))
    assert asked == [12, 12, 30, 30]
    assert {len(one) for one in runs.values()} == {1}


def test_P09_an_end_at_once_is_null() -> None:
    """The first token ends the text: no step, no time behind it, no mean."""
    engine = Engine(script("a"))
    task = Task("end", "", (BOS, ord("a")))
    comparison = compare([Method("plain", engine)], [task], GenerationParams(max_tokens=5))
    figures = comparison.figures[0]
    assert figures.num_tokens == 1
    assert figures.tokens_per_second
    assert figures.mean_acceptance_length is None
    assert figures.decode_speedup is None
    assert figures.host_share is None
    assert figures.speedup == 1.0
    assert figures.speedup_low is None


def test_P09_no_prompts_is_a_message() -> None:
    with pytest.raises(BadInput, match="no prompts to measure"):
        make_tasks(Engine(script("a")), [])


def test_tasks_are_first_turns() -> None:
    prompt = Prompt("x", "chat", (Message("user", "ab"),), ("later",), is_text=True)
    assert make_tasks(Engine(script("ab")), [prompt]) == (Task("x", "chat", tuple(b"ab")),)
