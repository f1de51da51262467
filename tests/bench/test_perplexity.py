"""How likely the target finds answers, against the model's own forward."""

from __future__ import annotations

import math

import pytest
import torch

from entmtp.bench import Method, Task, measure
from entmtp.bench import perplexity as room
from entmtp.bench.perplexity import answer_loss, answer_perplexities
from entmtp.engine import Engine, GenerationParams
from entmtp.target.model import PREFILL_CHUNK
from fixtures import ring, tiny


@pytest.mark.parametrize("num_prompt", [1, 9, PREFILL_CHUNK - 1, PREFILL_CHUNK, PREFILL_CHUNK + 1])
@pytest.mark.parametrize("num_answer", [1, 7, PREFILL_CHUNK + 3])
def test_losses_are_those_of_one_plain_forward(num_prompt: int, num_answer: int) -> None:
    target = tiny(max_length=1024)
    torch.manual_seed(num_prompt)
    ids = torch.randint(target.vocab_size, (1, num_prompt + num_answer))
    with torch.inference_mode(), target.own_attention() as model:
        log_probs = model(ids).logits.log_softmax(-1)[0, num_prompt - 1 : -1]
    answer = ids[0, num_prompt:]
    expected = -log_probs.gather(1, answer[:, None]).sum().item()
    got = answer_loss(target, ids[0, :num_prompt].tolist(), answer.tolist())
    assert got == pytest.approx(expected, rel=1e-4)


def test_equal_answers_are_looked_at_once_and_others_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = ring()
    methods = [Method(name, Engine(target)) for name in ("plain", "same", "other")]
    tasks = [Task(f"x/{start}", "", (start, start + 1)) for start in range(3)]
    runs = dict(measure(methods, tasks, GenerationParams(max_tokens=4)))
    runs["other"] = [run._replace(token_ids=(*run.token_ids[:-1], 0)) for run in runs["other"]]
    asked: list[tuple[int, ...]] = []

    def loss(_: object, prompt_ids: object, answer_ids: tuple[int, ...]) -> float:
        asked.append(answer_ids)
        return 8.0 if answer_ids[-1] == 0 else 4.0

    monkeypatch.setattr(room, "answer_loss", loss)
    found = answer_perplexities(target, tasks, runs, "plain")
    assert len(asked) == 6
    assert found["plain"] == found["same"]
    assert found["plain"].value == pytest.approx(math.e)
    assert found["plain"].ratio == 1.0
    assert found["other"].value == pytest.approx(math.exp(2))
    assert found["other"].ratio == pytest.approx(math.e)
    assert found["other"].ratio_low == pytest.approx(math.e)


def test_P09_nothing_said_is_null() -> None:
    target = ring()
    tasks = [Task("x", "", (0, 1))]
    runs = measure([Method("plain", Engine(target))], tasks, GenerationParams(max_tokens=0))
    assert answer_perplexities(target, tasks, runs, "plain")["plain"] == (None, None, None, None)
