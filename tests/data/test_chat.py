"""Conversations to ids, with tokenizers small enough to read."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from entmtp.data import Message, chat_ids, plain_ids
from entmtp.data.chat import marked_ids
from entmtp.errors import BadInput

WORDS = {"[UNK]": 0, "user": 1, "system": 2, "hi": 3, "assistant": 4}
TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_chat_ids_end_where_the_answer_begins(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = TEMPLATE
    ids = chat_ids(tokenizer, [Message("system", "hi"), Message("user", "hi hi")])
    assert ids == [2, 3, 1, 3, 3, 4]


def test_S19_no_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(BadInput, match="no chat template; give the prompt as plain text"):
        chat_ids(tokenizer, [Message("user", "hi")])
    assert plain_ids(tokenizer, "hi user") == [3, 1]


def test_a_template_may_reject(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('no system role here') }}"
    with pytest.raises(BadInput, match="rejects this conversation: no system role here"):
        chat_ids(tokenizer, [Message("system", "hi")])


TURNS = [
    Message("user", "hi"),
    Message("assistant", "hi hi"),
    Message("user", "hi"),
    Message("assistant", "hi"),
]
SAID = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"


def test_answers_are_marked_and_nothing_else(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = TEMPLATE
    marked = marked_ids(tokenizer, TURNS, ends=[])
    assert marked.ids == (1, 3, 4, 3, 3, 1, 3, 4, 3)
    said = [place for place, is_answer in enumerate(marked.is_answer) if is_answer]
    assert said == [3, 4, 8]
    # What stands before an answer is what the model is given to go on from.
    assert list(marked.ids[:3]) == chat_ids(tokenizer, TURNS[:1])
    assert list(marked.ids[:8]) == chat_ids(tokenizer, TURNS[:3])


def test_an_answer_ends_with_its_first_end(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} {{ m.content }}"
        "{{ ' [UNK] system ' if m.role == 'assistant' else ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    marked = marked_ids(tokenizer, TURNS[:2], ends=[0])
    assert marked.ids == (1, 3, 4, 3, 3, 0, 2)
    assert marked.is_answer == (False, False, False, True, True, True, False)


def test_a_turn_that_the_template_rewrites_later_is_not_marked(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    # As models that think do: of earlier answers only a part stays.
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }} "
        "{{ m.content if loop.last or m.role == 'user' else m.content[:2] }} {% endfor %}"
        "{% if add_generation_prompt %}assistant {% endif %}"
    )
    marked = marked_ids(tokenizer, TURNS, ends=[])
    assert marked.ids == (1, 3, 4, 3, 1, 3, 4, 3)
    assert marked.is_answer == (*[False] * 7, True)


def test_a_template_without_a_generation_prompt_marks_nothing_wrong(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    tokenizer.chat_template = "{% if add_generation_prompt %}system {% endif %}" + SAID
    assert not any(marked_ids(tokenizer, TURNS, ends=[]).is_answer)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "RecursionError"),
    ],
    ids=["divides", "adds", "nests"],
)
def test_a_template_may_fail_in_any_way(
    template: str, said: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    tokenizer.chat_template = template
    with pytest.raises(BadInput, match=f"fails on this conversation: {said}"):
        chat_ids(tokenizer, [Message("user", "hi")])


def test_half_a_surrogate_pair_is_no_message(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = SAID
    with pytest.raises(BadInput, match="message of the system is not UTF-8"):
        chat_ids(tokenizer, [Message("system", "\udcff"), Message("user", "hi")])
