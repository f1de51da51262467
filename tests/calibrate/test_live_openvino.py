"""On OpenVINO too a trace says what a live run accepts: it comes from the same calls."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from confident import ConfidentPolicy
from draft_heads import KINDS
from entmtp.calibrate import replay
from entmtp.calibrate.answers import answer_params
from entmtp.calibrate.collect import TraceConfig
from entmtp.data.cache import silent
from entmtp.engine import Engine, TokenEvent
from entmtp.scheduler import Selection
from entmtp.target.runtimes.openvino import OpenVinoTarget
from entmtp.trees import full
from rank_traces import ANSWERS, collect, questions, talker, talkers_heads
from runtimes import drafting_on_openvino, graphs_in, needs_openvino

pytestmark = needs_openvino


class Watched(ConfidentPolicy):
    """Keeps its selections."""

    def begin(self, seed: int) -> Selection:
        self.begun = [*getattr(self, "begun", []), super().begin(seed)]
        return self.begun[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number_format", ["float32", "int8"])
def test_a_trace_is_of_what_computes(kind: str, number_format: str, tmp_path: Path) -> None:
    with graphs_in(tmp_path):
        target = OpenVinoTarget(talker(), number_format, silent)
        heads = drafting_on_openvino(talkers_heads(kind), target)
        wide = full(3, 3)
        stored = collect(target, heads, tmp_path / "t", TraceConfig(ANSWERS, wide))
        policy = Watched([wide], stop=0.0, cut=0.0)
        engine, live = Engine(target, heads, policy), []
        for question in questions(target):
            events = list(engine.stream(question.prompt_ids, answer_params(question, ANSWERS)))
            live += [len(e.token_ids) - 1 for e in events if isinstance(e, TokenEvent)][1:]
    run = replay.replay_tree(stored.trace, wide)
    assert run.accepted.tolist() == live
    assert (stored.origin.runtime, stored.origin.number_format) == ("openvino", number_format)
    drafts = [draft for selection in policy.begun for draft, _ in selection.cuts]
    starts = run.starts[stored.trace.remaining[run.starts] > 1]
    for row, draft in zip(stored.trace.log_probs[starts], drafts, strict=True):
        np.testing.assert_allclose(row[: draft.tree.num_nodes], draft.log_probs, atol=1e-3)
