"""A tokenizer that was written down says what the one of `transformers` says, or is not used."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from entmtp.data.prompts import packaged_prompts
from entmtp.data.stored_tokenizer import StoredTokenizer, described
from fixtures import byte_tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content']"
    " + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ALL_NAMES = (
    "{{ bos_token }}{% set box = namespace(seen=0) %}\n"
    "{% for message in messages %}\n"
    "  {% if message.role == 'system' %}{% continue %}{% endif %}\n"
    "  {% set box.seen = box.seen + 1 %}{{ box.seen }}{{ message | tojson }}"
    "{{ dict(a=message.content) | tojson(indent=1) }}{{ dict.fromkeys('ab') }}\n"
    "{% endfor %}{{ tools is none }}{{ documents is none }}{{ unknown_token is defined }}"
    "{% if add_generation_prompt %}>{{ eos_token }}{% endif %}"
)
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}hi"
TALKS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Name three things that float."}],
    [{"role": "system", "content": "Be <b>brief</b> & 'kind'."}, {"role": "user", "content": "ü"}],
    [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "  two\n"},
        {"role": "user", "content": "<|im_end|>\n{{ 3 }}"},
    ],
]


def with_template(template: str | None) -> PreTrainedTokenizerFast:
    tokenizer = copy.deepcopy(byte_tokenizer())
    tokenizer.chat_template = template
    return tokenizer


def stored(tokenizer: Any) -> StoredTokenizer:
    description = described(tokenizer)
    assert description is not None
    return StoredTokenizer(**description)


def assert_same(theirs: Any, texts: list[str], talks: list[list[dict[str, str]]]) -> None:
    ours = stored(theirs)
    assert ours.get_vocab() == theirs.get_vocab()
    assert len(ours) == len(theirs)
    for text in texts:
        for special in (True, False):
            ids = theirs(text, add_special_tokens=special)["input_ids"]
            assert ours(text, add_special_tokens=special)["input_ids"] == ids, text
            for skip in (True, False):
                said = theirs.decode(ids, skip_special_tokens=skip)
                assert ours.decode(ids, skip_special_tokens=skip) == said, text
    for talk in talks if theirs.chat_template else []:
        for is_asked in (True, False):
            for tokenize in (True, False):
                told = {
                    "add_generation_prompt": is_asked,
                    "tokenize": tokenize,
                    "return_dict": tokenize,
                }
                expected = theirs.apply_chat_template(talk, **told)
                got = ours.apply_chat_template(talk, **told)
                if tokenize:
                    assert got["input_ids"] == expected["input_ids"]
                else:
                    assert got == expected


@pytest.mark.real_model
def test_the_embedded_models_tokenizer(smollm2_folder: Path) -> None:
    theirs = AutoTokenizer.from_pretrained(smollm2_folder)
    texts = [message.content for prompt in packaged_prompts() for message in prompt.messages]
    texts += [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*"))]
    talks = [
        [{"role": message.role, "content": message.content} for message in prompt.messages]
        for prompt in packaged_prompts()
    ]
    assert len(talks) > 10
    assert_same(theirs, texts, talks + TALKS)


@pytest.mark.parametrize("template", [None, CHATML, ALL_NAMES])
def test_a_tokenizer_of_bytes(template: str | None) -> None:
    assert_same(with_template(template), ["", "<bos>a<eos>", "naïve 👩‍👧"], TALKS)


@given(st.text(), st.lists(st.integers(0, 257), max_size=20))
def test_any_text_and_any_ids(text: str, ids: list[int]) -> None:
    theirs = byte_tokenizer()
    ours = STORED_BYTES
    assert ours(text)["input_ids"] == theirs(text)["input_ids"]
    for skip in (True, False):
        said = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        assert ours.decode(ids, skip_special_tokens=skip) == said


STORED_BYTES = stored(byte_tokenizer())


def test_special_tokens_truncation_and_padding_of_its_own() -> None:
    backend = Backend(models.WordLevel({"[U]": 0, "a": 1, "b": 2, "<s>": 3}, unk_token="[U]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("<s>")])
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 3)]
    )
    backend.enable_truncation(2)
    backend.enable_padding(length=5)
    assert_same(PreTrainedTokenizerFast(tokenizer_object=backend), ["a b a b", "a"], [])


def test_what_a_template_refuses_is_refused_alike() -> None:
    theirs, told = with_template(STRICT), {"add_generation_prompt": True, "tokenize": False}
    ours = stored(theirs)
    for tokenizer in (ours, theirs):
        with pytest.raises(TemplateError, match="no system"):
            tokenizer.apply_chat_template(TALKS[1], return_dict=False, **told)
        with pytest.raises(ValueError, match=r"empty conversation|needs a message"):
            tokenizer.apply_chat_template([], return_dict=False, **told)


@pytest.mark.parametrize(
    ("template", "error"),
    [
        ("{{ ''.__class__.__mro__ }}", SecurityError),
        ("{{ messages.append(1) }}", SecurityError),
        ("{{ namespace(_a=1) }}", SecurityError),
        ("{% set n = namespace() %}{% set n._a = 1 %}", SecurityError),
        ("{{ dict.mro() }}", TemplateError),
        ("{% if %}", TemplateSyntaxError),
    ],
)
def test_the_sandbox_is_as_tight(template: str, error: type[Exception]) -> None:
    theirs = with_template(template)
    ours = StoredTokenizer(theirs.backend_tokenizer.to_str(), template, {})
    for tokenizer in (ours, theirs):
        with pytest.raises(error):
            tokenizer.apply_chat_template(
                TALKS[0], add_generation_prompt=True, tokenize=False, return_dict=False
            )


class OwnWay(PreTrainedTokenizerFast):
    def _decode(self, *arguments: Any, **options: Any) -> str:
        return super()._decode(*arguments, **options).upper()


def own_way() -> Any:
    return OwnWay(tokenizer_object=byte_tokenizer().backend_tokenizer)


def cleans_up() -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer().backend_tokenizer, clean_up_tokenization_spaces=True
    )


def splits_special() -> Any:
    tokenizer = with_template(None)
    tokenizer.split_special_tokens = True
    return tokenizer


def many_templates() -> Any:
    tokenizer = with_template(None)
    tokenizer.chat_template = {"default": CHATML, "other": STRICT}
    return tokenizer


def marks_answers() -> Any:
    return with_template("{% generation %}a{% endgeneration %}")


def nothing() -> Any:
    return None


@pytest.mark.parametrize(
    "make", [own_way, cleans_up, splits_special, many_templates, marks_answers, nothing]
)
def test_what_does_more_is_left_to_transformers(make: Any) -> None:
    assert described(make()) is None
