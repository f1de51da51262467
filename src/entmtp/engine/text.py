"""Token ids to text as they come: whole characters only, and nothing of a stop string.

Knows: a tokenizer and stop strings. Does not know: models, steps.

Ids are pushed one at a time, so that a stop string inside a long accepted block ends the
sequence at the same token as in plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from entmtp.data.tokenizer import Tokenizer

_HALF_CHARACTER = "\ufffd"


class TextStream:
    """The text of one sequence."""

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        stop: Sequence[str],
        min_tokens: int = 0,
    ) -> None:
        """A stop string that is complete within the first `min_tokens` ids is mere text."""
        self._tokenizer = tokenizer
        self._stop = tuple(string for string in stop if string)
        self._min_tokens = min_tokens
        self._ids: list[int] = []
        self._context = 0  # decoding starts here: some ids before the new ones, for spacing
        self._decoded = 0  # ids up to here are in `text`
        self.text = ""
        """Whole characters as far as they were asked for; cut in front of a stop string once one
        was met"""
        self._shown = 0

    def push(self, token_id: int) -> bool:
        """Add one id; True if it completed a stop string."""
        self._ids.append(token_id)
        # Where nothing can stop, a step's ids are decoded together when they are taken.
        return bool(self._stop) and self._read()

    def take(self) -> str:
        """New text that can be shown: not the possible beginning of a stop string."""
        self._read()
        end = len(self.text) - self._held_back()
        shown, self._shown = self.text[self._shown : end], max(self._shown, end)
        return shown

    def flush(self) -> str:
        """What is left once the sequence is over, a half character at its end included."""
        self._read(is_over=True)
        rest, self._shown = self.text[self._shown :], len(self.text)
        return rest

    def _read(self, is_over: bool = False) -> bool:
        """Decode new ids, unless the last character is a half one; True if they end in a stop
        string."""
        if self._tokenizer is None or self._decoded == len(self._ids):
            return False
        before = self._decode(self._context, self._decoded)
        after = self._decode(self._context, len(self._ids))
        if after.endswith(_HALF_CHARACTER) and not is_over:
            return False
        old = len(self.text)
        self.text += after[len(before) :]
        self._context, self._decoded = self._decoded, len(self._ids)
        if len(self._ids) <= self._min_tokens:
            return False
        # What was there before is no news: a stop string must end in the new text.
        found = [self.text.find(one, max(0, old - len(one) + 1)) for one in self._stop]
        found = [place for place in found if place >= 0]
        if found:
            self.text = self.text[: min(found)]
        return bool(found)

    def _decode(self, start: int, stop: int) -> str:
        assert self._tokenizer is not None
        text = self._tokenizer.decode(
            self._ids[start:stop], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        assert isinstance(text, str)
        return text

    def _held_back(self) -> int:
        """Characters at the end that might begin a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for size in range(min(longest, len(self.text)), 0, -1):
            tail = self.text[-size:]
            if any(string.startswith(tail) for string in self._stop):
                return size
        return 0
