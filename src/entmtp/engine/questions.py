"""Prompts to be answered in numbers, as token ids.

Knows: prompts, the target's tokenizer and limits. Does not know: who wants the answers.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import NamedTuple

from entmtp.data import Prompt
from entmtp.engine.prompt import encode
from entmtp.errors import BadInput
from entmtp.target.model import TargetModel


class Question(NamedTuple):
    """A prompt and its ids."""

    id: str
    kind: str
    prompt_ids: tuple[int, ...]


def encode_prompts(
    target: TargetModel, prompts: Sequence[Prompt], max_tokens: int
) -> list[Question]:
    """The prompts of at most `max_tokens` tokens that leave room for an answer.

    Longer ones are left out with a warning.

    Raises:
        BadInput: a prompt cannot be encoded, or none is short enough.
    """
    limit = min(max_tokens, target.max_length - 1)
    questions = []
    for prompt in prompts:
        try:
            ids = tuple(encode(target, prompt.content))
        except BadInput as error:
            raise BadInput(f"prompt {prompt.id}: {error}") from error
        if 0 < len(ids) <= limit:
            questions.append(Question(prompt.id, prompt.kind, ids))
    if not questions:
        raise BadInput(
            f"none of {len(prompts)} prompts has 1 to {limit} tokens; give shorter prompts"
        )
    if num_long := len(prompts) - len(questions):
        warnings.warn(
            f"{num_long} of {len(prompts)} prompts have more than {limit} tokens and are left out",
            stacklevel=3,
        )
    return questions
