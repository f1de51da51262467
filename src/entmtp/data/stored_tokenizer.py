"""A tokenizer from what was written down of one of `transformers`, without `transformers`.

Knows: the `tokenizers` library, which does the work in `transformers` too, and chat templates in a
sandbox. Does not know: files, models.

A tokenizer that does anything else than hand its texts to that library is not described, and one is
only described if both give the same ids and texts for some awkward ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from tokenizers import Tokenizer as Backend

_PLAIN_METHODS = (
    *("__call__", "_encode_plus", "_convert_encoding", "set_truncation_and_padding"),
    *("decode", "_decode", "apply_chat_template", "get_chat_template", "get_vocab", "__len__"),
)
"""Whose meaning is known as long as a class leaves them as they are"""
_HOOKS = ("_switch_to_input_mode", "_switch_to_target_mode")
_TEXTS = (
    *("", " ", "Hello", "  Hello,\tworld!\n\n", "it's 12,345.67€ — naïve café", "日本語のテキスト"),
    *(
        "🤖👩‍👩‍👧",
        "def f(x):\n    return x ** 2  # ½\n",
        "<s>a</s> <|im_start|>b<|im_end|>",
        "\ufeffe\u0301",
    ),
)
_ROLES = (("user",), ("system", "user"), ("user", "assistant", "user"))


class StoredTokenizer:
    """A `Tokenizer` that starts in a tenth of a second."""

    def __init__(self, backend: str, chat_template: str | None, special: Mapping[str, str]) -> None:
        """
        Args:
            backend: JSON of the `tokenizers` library.
            special: tokens that chat templates may name.

        Raises:
            Exception: `backend` is not such JSON (of no other type in that library).
        """
        self._backend = Backend.from_str(backend)
        self._special = dict(special)
        self.chat_template = chat_template

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Mapping[str, Any]:
        encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoding.ids}

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        assert not clean_up_tokenization_spaces, "the described tokenizer does not clean up"
        text: str = self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens)
        return text

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        return_dict: bool = True,
    ) -> Any:
        assert self.chat_template is not None, "asked before"
        if not conversation:
            raise ValueError("a conversation needs a message")
        text = _compiled(self.chat_template).render(
            messages=[dict(message) for message in conversation],
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special,
        )
        if not tokenize:
            return text
        encoded = self(text, add_special_tokens=False)
        return encoded if return_dict else encoded["input_ids"]

    def get_vocab(self) -> dict[str, int]:
        vocabulary: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return vocabulary

    def __len__(self) -> int:
        size: int = self._backend.get_vocab_size(with_added_tokens=True)
        return size


def described(tokenizer: Any) -> dict[str, Any] | None:
    """The arguments of a `StoredTokenizer` that is the same, as JSON values; None where there is
    no such.

    Args:
        tokenizer: of `transformers`.
    """
    if not _is_plain(tokenizer):
        return None
    backend = Backend.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()
    backend.no_padding()
    description = {
        "backend": backend.to_str(),
        "chat_template": tokenizer.chat_template,
        "special": dict(tokenizer.special_tokens_map),
    }
    return description if _is_same(StoredTokenizer(**description), tokenizer) else None


def _is_plain(tokenizer: Any) -> bool:
    """Whether `transformers` adds nothing to its backend but the chat template."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and all(
            getattr(kind, name, None) is getattr(PreTrainedTokenizerFast, name, None)
            for name in (*_PLAIN_METHODS, *_HOOKS)
        )
        and not tokenizer.clean_up_tokenization_spaces
        and not tokenizer.split_special_tokens
        and (tokenizer.chat_template is None or type(tokenizer.chat_template) is str)
    )


def _is_same(ours: StoredTokenizer, theirs: Any) -> bool:
    for text in _TEXTS:
        for special in (True, False):
            ids = ours(text, add_special_tokens=special)["input_ids"]
            if ids != theirs(text, add_special_tokens=special)["input_ids"]:
                return False
            if ours.decode(ids, skip_special_tokens=special) != theirs.decode(
                ids, skip_special_tokens=special
            ):
                return False
    return all(_said(ours, roles) == _said(theirs, roles) for roles in _ROLES)


def _said(tokenizer: Any, roles: Sequence[str]) -> list[object]:
    """What becomes of conversations of these roles; a refusal is an answer, too."""
    said: list[object] = []
    if tokenizer.chat_template:
        pairs = zip(roles, _TEXTS[2:], strict=False)
        talk = [{"role": role, "content": text} for role, text in pairs]
        for is_asked in (True, False):
            try:
                said.append(
                    tokenizer.apply_chat_template(
                        talk, add_generation_prompt=is_asked, tokenize=False, return_dict=False
                    )
                )
            except Exception as error:  # a template raises what it likes
                said.append((type(error), str(error)))
    return said


@cache
def _compiled(chat_template: str) -> Any:
    """A template in the sandbox of `transformers`: the same names, and nothing else.

    Raises:
        TemplateSyntaxError: it is none.
    """
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Names
    return environment.from_string(chat_template)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, without escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


class _Dict:
    """`dict`, of which a template sees no more than this."""

    def __call__(self, *pairs: Any, **items: Any) -> dict[Any, Any]:
        return dict(*pairs, **items)

    def fromkeys(self, *arguments: Any) -> dict[Any, Any]:
        return dict.fromkeys(*arguments)


class _Names(Namespace):
    """A `namespace` without names that lead into the interpreter."""

    def __init__(*arguments: Any, **items: Any) -> None:
        self, given = arguments[0], dict(*arguments[1:], **items)
        for name in given:
            _refuse_private(name)
        Namespace.__init__(self, given)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        super().__setitem__(name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a chat template names {name!r}; it may not begin with _")
