"""A tiny model that can be asked in words, heads that know some answers, and their traces."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from draft_heads import overfit_heads
from entmtp.calibrate.answers import AnswerConfig, plan_groups
from entmtp.calibrate.collect import TraceConfig, collect_trace
from entmtp.calibrate.trace_file import StoredTrace
from entmtp.data import Message, Prompt
from entmtp.engine import Engine, GenerationParams
from entmtp.engine.questions import Question
from entmtp.heads import DraftHeads
from entmtp.target import TargetModel
from fixtures import byte_tokenizer, tiny_model

WORDS = ("one", "two", "three", "four", "five", "six")
PROMPTS = tuple(
    Prompt(word, f"kind {place % 2}", (Message("user", word),)) for place, word in enumerate(WORDS)
)
ANSWERS = AnswerConfig(max_tokens=26, group_size=4)


@lru_cache
def talker(eos_id: int | None = None, seed: int = 0) -> TargetModel:
    """Random weights and a vocabulary of bytes; nothing is put around a prompt."""
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = "{{ messages[0].content }}"
    model = tiny_model(vocab_size=258, seed=seed, eos_token_id=eos_id)
    return TargetModel.from_transformers(model, tokenizer)


@lru_cache
def talkers_heads(kind: str) -> DraftHeads:
    """Heads that know the beginnings of half of the greedy answers by heart."""
    target = talker()
    answers = Engine(target).generate_many(WORDS[:3], GenerationParams(30))
    texts = zip(WORDS, answers, strict=False)
    return overfit_heads(
        target, kind, tuple((word.encode()[-1], *a.token_ids) for word, a in texts)
    )


def questions(target: TargetModel, answers: AnswerConfig = ANSWERS) -> list[Question]:
    """The rows of a trace, in order."""
    return [question for group in plan_groups(target, PROMPTS, answers) for question in group]


def collect(
    target: TargetModel,
    heads: DraftHeads,
    out: Path,
    config: TraceConfig | None = None,
    prompts: Sequence[Prompt] = PROMPTS,
) -> StoredTrace:
    with pytest.warns(UserWarning, match=f"only {len(prompts)} prompts"):
        return collect_trace(target, heads, prompts, out, config or TraceConfig(ANSWERS))
