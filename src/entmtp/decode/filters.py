"""Temperature, top-k, top-p and min-p: from processed logits to what a token is drawn from.

Knows: logits and `Sampling`. Does not know: what was said before, trees, noise.

Dimension key: B sequences · N nodes of each · V vocabulary · k kept candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from entmtp.decode.sampling import Sampling

MIN_TEMPERATURE = 1e-6
"""Lower ones are lifted to this: the likeliest token wins as surely, and float32 still divides."""


class Warper(NamedTuple):
    """`[B, N, V] -> [B, N, V]`: scaled logits, -inf outside of what its filters keep."""

    heat: torch.Tensor  # [B, 1, 1]
    filters: tuple[_TopKTopP | _MinP, ...]

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        scores = logits / self.heat
        for keep in self.filters:
            scores = keep(scores)
        return scores

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All that differs between two of the same kind."""
        return [self.heat, *(tensor for keep in self.filters for tensor in keep.tensors)]

    @property
    def kind(self) -> tuple[object, ...]:
        """What operations it is made of."""
        return tuple((type(keep), keep.most) for keep in self.filters)


def make_warper(rows: Sequence[Sampling], device: torch.device) -> Warper:
    """Temperature, then top-k, top-p and min-p: the order of `transformers`.

    Of equal logits at the border of top-k and top-p the lowest ids stay. What a row keeps does
    not depend on the other rows. Greedy rows are passed at temperature 1; their likeliest token
    is never filtered away.
    """
    heats = [max(row.temperature, MIN_TEMPERATURE) if row.temperature else 1.0 for row in rows]
    filters: list[_TopKTopP | _MinP] = []
    if any(row.top_k or row.top_p < 1 for row in rows):
        # Where every row has a top-k, only that many values need to be put in order.
        most = _power_of_two(row.top_k for row in rows) if all(row.top_k for row in rows) else None
        top_k = _column([row.top_k for row in rows], device)
        filters.append(_TopKTopP(top_k, _column([row.top_p for row in rows], device), most))
    if any(row.min_p for row in rows):
        filters.append(_MinP(_column([row.min_p for row in rows], device)))
    return Warper(_column(heats, device), tuple(filters))


def _power_of_two(counts: Iterable[int]) -> int:
    """At least as large as each: few sizes, so that few kinds of warpers are made."""
    return 1 << (max(counts) - 1).bit_length()


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """One value for each row, `[B, 1, 1]`."""
    return torch.tensor(values, device=device)[:, None, None]


class _MinP(NamedTuple):
    """Least likelihood in proportion to the likeliest token's (arXiv:2407.01082)."""

    least: torch.Tensor  # [B, 1, 1]
    most: None = None

    def __call__(self, scaled: torch.Tensor) -> torch.Tensor:
        weights = (scaled - scaled.amax(-1, keepdim=True)).exp()
        return scaled.masked_fill(weights < self.least, -torch.inf)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.least]


class _TopKTopP(NamedTuple):
    """The likeliest tokens up to a count, and of their mass the likeliest up to a share."""

    top_k: torch.Tensor  # [B, 1, 1]
    top_p: torch.Tensor  # [B, 1, 1]
    most: int | None
    """Values that need to be put in order; None for all"""

    def __call__(self, scaled: torch.Tensor) -> torch.Tensor:
        top_k, top_p = self.top_k, self.top_p
        values = _largest(scaled, self.most)
        allowed = torch.where(top_k == 0, values.shape[-1], top_k.clamp(max=values.shape[-1]))
        weights = (values - values[..., :1]).exp()
        # Sums from the top alone: the same however many values were put in order.
        mass = weights.cumsum(-1)
        last = (allowed - 1).expand(*mass.shape[:-1], 1)
        kept = (mass - weights < top_p * mass.gather(-1, last)) | (top_p == 1)
        kept &= torch.arange(values.shape[-1], device=scaled.device) < allowed
        kept[..., 0] = True  # rounding must not leave a row without candidates
        return _keep_largest(scaled, values, kept.sum(-1, keepdim=True))

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [self.top_k, self.top_p]


def _largest(scaled: torch.Tensor, most: int | None) -> torch.Tensor:
    """The `most` largest values of each row in descending order; None for all."""
    if most is None or most >= scaled.shape[-1]:
        return scaled.sort(dim=-1, descending=True).values
    return scaled.topk(most, dim=-1).values


def _keep_largest(
    scaled: torch.Tensor,  # [B, N, V]
    values: torch.Tensor,  # [B, N, k] the largest of them, descending
    num_kept: torch.Tensor,  # [B, N, 1]
) -> torch.Tensor:
    """-inf outside of each row's `num_kept` largest."""
    return scaled.masked_fill(~are_largest(scaled, values, num_kept), -torch.inf)


def are_largest(
    scaled: torch.Tensor,  # [..., V]
    values: torch.Tensor,  # [..., k] the largest of them, descending
    num_kept: torch.Tensor,  # [..., 1]
) -> torch.Tensor:
    """Which `[..., V]` are each row's `num_kept` largest.

    Which of equal values a top-k or a sort puts first is up to their implementation, so the ids
    are chosen here: of those at the border, the lowest.
    """
    border = values.gather(-1, num_kept - 1)
    num_at_border = num_kept - (values > border).sum(-1, keepdim=True)
    at_border = scaled == border
    return (scaled > border) | (at_border & (at_border.cumsum(-1) <= num_at_border))
