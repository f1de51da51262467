"""The target answers calibration prompts, and reads its answers once more, whole.

Knows: prompts, the engine, hidden states of whole rows. Does not know: heads, trees, files.

A group of rows is answered together and is a function of its prompts and the settings alone. Rows
stand in the order of a hash of their prompts, so that neither the order of a file nor what else
is in it changes more than the groups (and in float32 nothing but the order).

Dimension key: R rows of a group · L tokens of all its rows, prompts included · N answer tokens of
all its rows · H hidden size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from entmtp.data import Prompt
from entmtp.decode import Sampling
from entmtp.engine import Engine, FinishEvent, GenerationParams
from entmtp.engine.questions import Question, encode_prompts
from entmtp.target import TargetModel

_CHUNK = 256
"""Places whose logits are in memory at a time."""


@dataclass(frozen=True)
class AnswerConfig:
    """How calibration prompts are answered."""

    temperature: float = 0.0
    """0 is greedy"""
    seed: int = 0
    """Answers at a temperature are drawn by it and by their prompt"""
    max_tokens: int = 256
    """Tokens of one answer at the most"""
    max_prompt_tokens: int = 1024
    """Longer prompts are left out"""
    group_size: int = 16
    """Answers in progress at a time, kept together on disk"""
    num_threads: int = 1
    """Of PyTorch on a CPU, whose sums depend on it in the last bits: a trace is the same whatever
    the machine's number is. More are faster on large models"""


class Group(NamedTuple):
    """Some answered rows, laid end to end."""

    token_ids: torch.Tensor  # [L] int64, prompts and answers
    hidden: torch.Tensor  # [L, H] the target's states behind each token
    root: torch.Tensor  # [N, 2] top-1 probability and entropy (nats) that each token came from
    prompt_lengths: torch.Tensor  # [R] int64
    answer_lengths: torch.Tensor  # [R] int64

    def rows(self) -> list[tuple[slice, int]]:
        """Of each row, its tokens and the length of its prompt."""
        lengths = self.prompt_lengths + self.answer_lengths
        ends = lengths.cumsum(0).tolist()
        begins = (lengths.cumsum(0) - lengths).tolist()
        prompts = self.prompt_lengths.tolist()
        return [(slice(b, e), p) for b, e, p in zip(begins, ends, prompts, strict=True)]


def plan_groups(
    target: TargetModel, prompts: Sequence[Prompt], config: AnswerConfig
) -> list[list[Question]]:
    """The prompts that are short enough, each once, in the order of their hashes.

    Raises:
        BadInput: a prompt cannot be encoded, or none is short enough.
    """
    questions: dict[str, Question] = {}
    for question in encode_prompts(target, prompts, config.max_prompt_tokens):
        key = question_key(question)
        if key not in questions or question.kind < questions[key].kind:
            questions[key] = question
    ordered = [questions[key] for key in sorted(questions)]
    size = config.group_size
    return [ordered[start : start + size] for start in range(0, len(ordered), size)]


def question_key(question: Question) -> str:
    """Names a prompt by its content."""
    return hashlib.sha256(json.dumps(question.prompt_ids).encode()).hexdigest()


def answer_group(
    target: TargetModel,
    group: Sequence[Question],
    config: AnswerConfig,
    progress: Callable[[int], None],
) -> Group:
    """Answer the prompts of a group, losslessly, then read every row in one forward.

    Args:
        progress: called with the number of answers so far.
    """
    answers = _answers(target, group, config, progress)
    rows = [[*q.prompt_ids, *ids] for q, ids in zip(group, answers, strict=True)]
    hidden, root = [], []
    with target.at_work():
        for question, row in zip(group, rows, strict=True):
            states = _hidden_states(target, row)
            before = states[len(question.prompt_ids) - 1 : -1]
            logits = map(target.logits, before.split(_CHUNK))
            root.append(torch.cat([target.root_signals(part) for part in logits]))
            hidden.append(states)
    return Group(
        torch.tensor([token_id for row in rows for token_id in row]),
        torch.cat(hidden),
        torch.cat(root),
        torch.tensor([len(question.prompt_ids) for question in group]),
        torch.tensor([len(ids) for ids in answers]),
    )


def _answers(
    target: TargetModel,
    group: Sequence[Question],
    config: AnswerConfig,
    progress: Callable[[int], None],
) -> list[tuple[int, ...]]:
    engine = Engine(target, max_batch_size=config.group_size)
    requests = [engine.add(q.prompt_ids, answer_params(q, config)) for q in group]
    answers: dict[int, tuple[int, ...]] = {}
    while len(answers) < len(requests):
        engine.step()
        for request in requests:
            for event in engine.take_events(request):
                if isinstance(event, FinishEvent):
                    answers[request] = event.result.token_ids
                    progress(len(answers))
    return [answers[request] for request in requests]


def answer_params(question: Question, config: AnswerConfig) -> GenerationParams:
    """How one prompt is answered: its seed is its own, whatever the others."""
    text = f"{config.seed}/{question_key(question)}"
    seed = int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)
    return GenerationParams(config.max_tokens, Sampling(config.temperature, seed=seed))


@torch.inference_mode()
def _hidden_states(target: TargetModel, row: Sequence[int]) -> torch.Tensor:
    """Hidden states `[L, H]` of one row, as a prompt is read."""
    cache = target.new_cache(1, len(row))
    ids = torch.tensor([list(row)], device=target.device)
    return torch.cat(list(target.prefill(ids, cache)), 1)[0]
