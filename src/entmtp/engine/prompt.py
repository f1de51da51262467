"""What may be given as a prompt, and its token ids.

Knows: texts, ids, messages, the target's tokenizer and limits. Does not know: sequences, steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import SupportsInt, TypeGuard

from entmtp.data import Message, chat_ids, is_text, plain_ids
from entmtp.data.tokenizer import Tokenizer
from entmtp.errors import BadInput
from entmtp.target.model import TargetModel

Prompt = str | Sequence[int] | Sequence[Message]
"""A text (put into the model's chat form, if it has one), token ids, or a conversation."""


def prompt_ids(target: TargetModel, prompt: Prompt) -> list[int]:
    """Token ids of a prompt that leaves room for an answer.

    Raises:
        BadInput: it is empty, too long for the context, or has ids that the model has not.
    """
    ids = encode(target, prompt)
    limit = target.max_length
    if not ids:
        raise BadInput("the prompt is empty; give at least one token")
    if len(ids) >= limit:
        raise BadInput(
            f"the prompt has {len(ids)} tokens and the model's context {limit}; shorten the"
            f" prompt to {limit - 1} tokens at the most"
        )
    odd = next((i for i in ids if not 0 <= i < target.vocab_size), None)
    if odd is not None:
        raise BadInput(f"token id {odd} is outside the vocabulary of {target.vocab_size}")
    return ids


def encode(target: TargetModel, prompt: Prompt) -> list[int]:
    """Token ids of a prompt, however long it is."""
    tokenizer = target.tokenizer
    if not isinstance(prompt, str):
        # Bytes would pass for ids.
        is_list = isinstance(prompt, Iterable) and not isinstance(prompt, bytes | bytearray)
        items: list[object] = list(prompt) if is_list else [None]
        ids = [int(item) for item in items if _is_id(item)]
        if len(ids) == len(items):
            return ids
        messages = [item for item in items if isinstance(item, Message)]
        if len(messages) < len(items):
            raise BadInput(
                "the prompt is neither text, nor token ids, nor messages, but a"
                f" {type(prompt).__name__}; give one of them (ids as a list of whole numbers)"
            )
        return chat_ids(_demand(tokenizer), messages)
    tokenizer = _demand(tokenizer)
    if not prompt.strip():
        raise BadInput("the prompt is empty; give some text")
    if not is_text(prompt):
        raise BadInput("the prompt is not UTF-8; convert it first")
    if tokenizer.chat_template:
        return chat_ids(tokenizer, [Message("user", prompt)])
    return plain_ids(tokenizer, prompt)


def _is_id(item: object) -> TypeGuard[SupportsInt]:
    return isinstance(item, Integral) and not isinstance(item, bool)


def _demand(tokenizer: Tokenizer | None) -> Tokenizer:
    if tokenizer is None:
        raise BadInput("this model has no tokenizer; give the prompt as token ids")
    return tokenizer
