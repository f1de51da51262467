"""Log-probabilities of what was said: the model's own, before temperature and processors.

Knows: logits and ids. Does not know: who chose the ids, or how.

Dimension key: B sequences · n tokens of each · V vocabulary · k likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from entmtp.decode.filters import are_largest

LOWEST = -9999.0
"""Stands for minus infinity, which JSON has no word for; as OpenAI's."""


class TokenLogprob(NamedTuple):
    """One token that was said, and the likeliest ones in its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(id, log-probability), likeliest first, ties to the lowest id"""


class Logprobs(NamedTuple):
    """The same for a batch, on the device."""

    chosen: torch.Tensor  # [B, n]
    top_ids: torch.Tensor  # [B, n, k]
    top: torch.Tensor  # [B, n, k]

    def rows(
        self, said: Sequence[Sequence[int]], wanted: Sequence[int | None]
    ) -> list[tuple[TokenLogprob, ...] | None]:
        """On the host, of the tokens that were said: what each row wanted, None for nothing."""
        columns = (self.chosen.tolist(), self.top_ids.tolist(), self.top.tolist())
        rows: list[tuple[TokenLogprob, ...] | None] = []
        for ids, most, *of_row in zip(said, wanted, *columns, strict=True):
            if most is None:
                rows.append(None)
                continue
            tokens = zip(ids, *of_row, strict=False)  # rejected levels lie behind the last id
            rows.append(
                tuple(
                    TokenLogprob(one, value, tuple(zip(top_ids[:most], top[:most], strict=True)))
                    for one, value, top_ids, top in tokens
                )
            )
        return rows


def logprobs_of(
    logits: torch.Tensor,  # [B, n, V]
    token_ids: torch.Tensor,  # [B, n]
    most: int,
) -> Logprobs:
    """Of tokens and of the `most` likeliest ones in their places, as many as there are."""
    log_p = torch.log_softmax(logits, -1)
    log_p = log_p.nan_to_num(nan=LOWEST, neginf=LOWEST).clamp(min=LOWEST)
    chosen = log_p.gather(-1, token_ids[..., None])[..., 0]
    size = min(most, logits.shape[-1])
    if size == 0:
        nothing = log_p[..., :0]
        return Logprobs(chosen, nothing.long(), nothing)
    values = log_p.topk(size, dim=-1).values
    num_kept = torch.full_like(token_ids, size)[..., None]
    kept = are_largest(log_p, values, num_kept)
    # The ids that are kept in rising order; a stable sort then leaves ties in that order.
    ids = torch.arange(logits.shape[-1], device=logits.device).expand_as(log_p)
    ids = ids.masked_fill(~kept, logits.shape[-1]).topk(size, largest=False, sorted=True).values
    order = log_p.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return Logprobs(chosen, ids.gather(-1, order.indices), order.values)


def join_logprobs(parts: Sequence[Logprobs]) -> Logprobs:
    """Several tokens of each sequence, one part behind the other."""
    return Logprobs(*(torch.cat(columns, 1) for columns in zip(*parts, strict=True)))
