"""Conversations to ids, with tokenizers small enough to read."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from entmtp.data import Message, chat_ids, plain_ids
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


def test_s19_no_chat_template(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(BadInput, match="no chat template; give the prompt as plain text"):
        chat_ids(tokenizer, [Message("user", "hi")])
    assert plain_ids(tokenizer, "hi user") == [3, 1]


def test_a_template_may_reject(tokenizer: PreTrainedTokenizerFast) -> None:
    tokenizer.chat_template = "{{ raise_exception('no system role here') }}"
    with pytest.raises(BadInput, match="rejects this conversation: no system role here"):
        chat_ids(tokenizer, [Message("system", "hi")])
