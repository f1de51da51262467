"""What of given rows will be trained on, counted before anything is computed.

Knows: rows. Does not know: files, features, heads.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from entmtp.errors import BadInput
from entmtp.train.rows import Row


class Survey(NamedTuple):
    """Counts over rows, each cut to the longest that features are made of."""

    num_rows: int
    num_useless: int
    """Rows that no head can learn from."""
    num_tokens: int
    """All of them, prompts included."""
    num_trained: int
    """Assistant tokens of the useful rows."""

    def check(self) -> None:
        """Raises BadInput: there is nothing to train on."""
        if self.num_trained == 0:
            raise BadInput(
                f"0 of {self.num_tokens} tokens are trained: none of {self.num_rows} rows holds"
                " two tokens of the assistant behind a prompt that fits; check the answers, and"
                " that the chat template marks where an answer begins"
            )

    def summary(self) -> str:
        """One line for people."""
        share = 1.0 - self.num_trained / self.num_tokens if self.num_tokens else 1.0
        useless = (
            f"; {self.num_useless} of {self.num_rows} rows left out, without two tokens of the"
            " assistant"
            if self.num_useless
            else ""
        )
        return (
            f"{self.num_trained:,} of {self.num_tokens:,} tokens are trained"
            f" ({share:.0%} masked){useless}"
        )


def survey(rows: Iterable[Row], max_length: int) -> Survey:
    """Count rows, cut to `max_length` tokens."""
    num_rows = num_useless = num_tokens = num_trained = 0
    for whole in rows:
        row = whole.cut(max_length)
        num_rows += 1
        num_tokens += row.length
        if row.is_useful:
            num_trained += row.num_answer
        else:
            num_useless += 1
    return Survey(num_rows, num_useless, num_tokens, num_trained)
