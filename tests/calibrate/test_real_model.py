"""The embedded model and the shipped heads: a trace says what a live run accepts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from entmtp.calibrate import replay
from entmtp.calibrate.answers import AnswerConfig, answer_params, plan_groups
from entmtp.calibrate.collect import TraceConfig, collect_trace
from entmtp.data.prompts import packaged_prompts
from entmtp.engine import Engine, TokenEvent
from entmtp.heads import load_heads, locate_heads
from entmtp.scheduler import StaticPolicy
from entmtp.target import TargetModel

pytestmark = [pytest.mark.real_model, pytest.mark.slow]


@pytest.mark.parametrize(("name", "temperature"), [("medusa", 0.0), ("hydra", 0.8)])
def test_a_trace_says_what_shipped_heads_get_accepted(
    name: str, temperature: float, smollm2: TargetModel, tmp_path: Path
) -> None:
    prompts = [prompt for prompt in packaged_prompts() if len(prompt.text) < 120][:2]
    heads = load_heads(locate_heads(name), smollm2)
    answers = AnswerConfig(temperature, max_tokens=24)
    with pytest.warns(UserWarning, match="only 2 prompts"):
        stored = collect_trace(smollm2, heads, prompts, tmp_path / "t", TraceConfig(answers))
    engine = Engine(smollm2, heads, StaticPolicy(stored.trace.wide_tree))
    live = []
    for question in (
        question for group in plan_groups(smollm2, prompts, answers) for question in group
    ):
        events = list(engine.stream(question.prompt_ids, answer_params(question, answers)))
        live += [len(e.token_ids) - 1 for e in events if isinstance(e, TokenEvent)][1:]
    run = replay.replay_tree(stored.trace, stored.trace.wide_tree)
    assert run.accepted.tolist() == live
    assert max(live) >= 2
    assert np.isfinite(stored.trace.log_probs).all()
