"""Conversations and plain text to token ids, as the model's own tokenizer does it.

Knows: chat templates. Does not know: models, prompts' files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import TemplateError

from entmtp.errors import BadInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from entmtp.data.prompts import Message


def chat_ids(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    """Ids of a conversation in the model's chat form, up to where the answer begins.

    Raises:
        BadInput: the tokenizer has no chat template, or its template rejects the conversation.
    """
    if not tokenizer.chat_template:
        raise BadInput(
            "this model's tokenizer has no chat template; give the prompt as plain text instead"
        )
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    try:
        encoded: Any = tokenizer.apply_chat_template(
            conversation, add_generation_prompt=True, tokenize=True, return_dict=True
        )
    except TemplateError as error:
        raise BadInput(f"the model's chat template rejects this conversation: {error}") from error
    return list(encoded["input_ids"])


def plain_ids(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Ids of a text without chat form, with the special tokens that the tokenizer itself adds."""
    return list(tokenizer(text)["input_ids"])
