"""Hidden states that wait for the heads to look at them, until the heads draft again.

Who decodes plainly for a while so pays for one look and not for one in each step. Knows: tensors.
Does not know: heads, steps.

Dimension key: B running sequences · A tokens of each · H hidden size.
"""

from __future__ import annotations

import torch

MOST_UNSEEN = 64
"""Tokens of each sequence that may wait: as many as lie between two probes of a policy that has
given up drafting. More would save little: a look at 16 takes 1.3 times as long as one at a single
token, one at 64 three times, one at 128 five times."""


class Unseen:
    """What has been kept since the last look, equally many tokens of each sequence."""

    def __init__(self) -> None:
        self._waiting: list[torch.Tensor] = []
        self.num_tokens = 0
        """Of each sequence"""

    @property
    def is_full(self) -> bool:
        return self.num_tokens >= MOST_UNSEEN

    def add(self, hidden: torch.Tensor) -> None:
        """Let hidden states `[B, A, H]` wait behind the others."""
        self._waiting.append(hidden)
        self.num_tokens += hidden.shape[1]

    def take(self) -> torch.Tensor | None:
        """All that wait, `[B, A, H]`, and none any more; None if there are none."""
        waiting = self._waiting
        self.clear()
        if len(waiting) < 2:
            return waiting[0] if waiting else None
        return torch.cat(waiting, 1)

    def clear(self) -> None:
        """Forget them."""
        self._waiting, self.num_tokens = [], 0
