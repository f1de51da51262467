"""What is asked of a tokenizer: `transformers`' have it, and one of our own that starts faster.

Knows: names of `transformers`. Does not know: who encodes what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Tokenizer(Protocol):
    """Text to ids and back, and a conversation to text."""

    chat_template: Any
    """Jinja, or nothing"""

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Mapping[str, Any]:
        """`input_ids` of a text."""

    def decode(
        self,
        token_ids: Sequence[int],
        *,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str:
        """Text of ids."""

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, str]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        return_dict: bool,
    ) -> Any:
        """The conversation's text, or its `input_ids` (`tokenize` and `return_dict`)."""

    def get_vocab(self) -> dict[str, int]:
        """All tokens, the special ones included."""

    def __len__(self) -> int:
        """How many these are."""
