"""Conversations and plain text to token ids, as the model's own tokenizer does it.

Knows: chat templates. Does not know: models, prompts' files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from entmtp.data.lines import is_text
from entmtp.data.tokenizer import Tokenizer
from entmtp.errors import BadInput

if TYPE_CHECKING:
    from entmtp.data.messages import Message


def chat_ids(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Ids of a conversation in the model's chat form, up to where the answer begins.

    Raises:
        BadInput: the tokenizer has no chat template, or its template rejects the conversation.
    """
    encoded = _render(tokenizer, messages, add_generation_prompt=True, tokenize=True)
    return list(encoded["input_ids"])


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text without chat form, with the special tokens that the tokenizer itself adds."""
    return list(tokenizer(text)["input_ids"])


class MarkedIds(NamedTuple):
    """A conversation whose answers are known."""

    ids: tuple[int, ...]
    is_answer: tuple[bool, ...]
    """Whether each token is one that the model would have said."""


def marked_ids(
    tokenizer: Tokenizer, messages: Sequence[Message], ends: Collection[int]
) -> MarkedIds:
    """Ids of a whole conversation; its answers up to their first end-of-turn id (of `ends`).

    An answer counts where the template, given the conversation up to there, ends in just the text
    that stands before the answer: what the model would have gone on from. A template that writes
    an early turn otherwise once a later one has come leaves that turn unmarked.

    Raises:
        BadInput: the tokenizer has no chat template, or its template rejects the conversation.
    """
    whole = chat_text(tokenizer, messages)
    ids: list[int] = []
    is_answer: list[bool] = []
    done = 0
    for index, message in enumerate(messages):
        if index == 0 or message.role != "assistant":
            continue
        before = chat_text(tokenizer, messages[:index], add_generation_prompt=True)
        behind = chat_text(tokenizer, messages[: index + 1])
        if not (whole.startswith(behind) and behind.startswith(before) and len(before) >= done):
            continue
        # In pieces, as in decoding: no token reaches across the beginning of an answer.
        asked = _pieces(tokenizer, whole[done : len(before)])
        said = _pieces(tokenizer, whole[len(before) : len(behind)])
        num_said = next((i for i, token in enumerate(said, start=1) if token in ends), len(said))
        ids += [*asked, *said]
        is_answer += [False] * len(asked) + [place < num_said for place in range(len(said))]
        done = len(behind)
    rest = _pieces(tokenizer, whole[done:])
    return MarkedIds((*ids, *rest), (*is_answer, *[False] * len(rest)))


def chat_text(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = False,
) -> str:
    """A conversation in the model's chat form; see `chat_ids`."""
    return str(
        _render(tokenizer, messages, add_generation_prompt=add_generation_prompt, tokenize=False)
    )


def read_chat_template(path: Path) -> str:
    """A chat template (Jinja) from a file.

    Raises:
        BadInput: it cannot be read. What it says is looked at when it is first used.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BadInput(f"{path}: {reason}; expected a file with a chat template") from None


def _pieces(tokenizer: Tokenizer, text: str) -> list[int]:
    """The template wrote the special tokens, so the tokenizer adds none."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []


def _render(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool,
    tokenize: bool,
) -> Any:
    if not tokenizer.chat_template:
        raise BadInput(
            "this model's tokenizer has no chat template; give the prompt as plain text instead,"
            " or pass a template where --chat-template is offered"
        )
    if odd := [message for message in messages if not is_text(message.content)]:
        raise BadInput(f"the message of the {odd[0].role} is not UTF-8; convert it first")
    conversation = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return tokenizer.apply_chat_template(
            conversation,
            add_generation_prompt=add_generation_prompt,
            tokenize=tokenize,
            return_dict=tokenize,
        )
    except TemplateSyntaxError as error:
        raise BadInput(
            f"line {error.lineno} of the chat template is broken: {error.message}; expected Jinja"
        ) from error
    except TemplateError as error:
        raise BadInput(f"the model's chat template rejects this conversation: {error}") from error
    # A template is a program and raises whatever its own lines lead to.
    except Exception as error:
        raise BadInput(
            f"the model's chat template fails on this conversation: {type(error).__name__}"
            f" ({error}); put the template right"
        ) from error
