"""Temperature, top-k, top-p and min-p: from processed logits to what a token is drawn from.

Knows: logits and `Sampling`. Does not know: what was said before, trees, noise.

Dimension key: B sequences · N nodes of each · V vocabulary · k kept candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from entmtp.decode.sampling import Sampling

MIN_TEMPERATURE = 1e-6
"""Lower ones are lifted to this: the likeliest token wins as surely, and float32 still divides."""

Warper = Callable[[torch.Tensor], torch.Tensor]
"""`[B, N, V] -> [B, N, V]`: scaled logits, -inf outside of what a filter keeps."""


def make_warper(rows: Sequence[Sampling], device: torch.device) -> Warper:
    """Temperature, then top-k, top-p and min-p: the order of `transformers`.

    Of equal logits at the border of top-k and top-p the lowest ids stay. What a row keeps does
    not depend on the other rows. Greedy rows are passed at temperature 1; their likeliest token
    is never filtered away.
    """
    heats = [max(row.temperature, MIN_TEMPERATURE) if row.temperature else 1.0 for row in rows]
    heat = _column(heats, device)
    filters: list[Warper] = []
    if any(row.top_k or row.top_p < 1 for row in rows):
        filters.append(_top_k_top_p(rows, device))
    if any(row.min_p for row in rows):
        filters.append(_min_p(rows, device))

    def warp(logits: torch.Tensor) -> torch.Tensor:
        scores = logits / heat
        for keep in filters:
            scores = keep(scores)
        return scores

    return warp


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """One value for each row, `[B, 1, 1]`."""
    return torch.tensor(values, device=device)[:, None, None]


def _min_p(rows: Sequence[Sampling], device: torch.device) -> Warper:
    """Least likelihood in proportion to the likeliest token's (arXiv:2407.01082)."""
    least = _column([row.min_p for row in rows], device)

    def keep(scaled: torch.Tensor) -> torch.Tensor:
        weights = (scaled - scaled.amax(-1, keepdim=True)).exp()
        return scaled.masked_fill(weights < least, -torch.inf)

    return keep


def _top_k_top_p(rows: Sequence[Sampling], device: torch.device) -> Warper:
    top_k = _column([row.top_k for row in rows], device)
    top_p = _column([row.top_p for row in rows], device)
    # Where every row has a top-k, only that many values need to be put in order.
    most = max(row.top_k for row in rows) if all(row.top_k for row in rows) else None

    def keep(scaled: torch.Tensor) -> torch.Tensor:
        values = _largest(scaled, most)
        allowed = torch.where(top_k == 0, values.shape[-1], top_k.clamp(max=values.shape[-1]))
        weights = (values - values[..., :1]).exp()
        # Sums from the top alone: the same however many values were put in order.
        mass = weights.cumsum(-1)
        last = (allowed - 1).expand(*mass.shape[:-1], 1)
        kept = (mass - weights < top_p * mass.gather(-1, last)) | (top_p == 1)
        kept &= torch.arange(values.shape[-1], device=device) < allowed
        kept[..., 0] = True  # rounding must not leave a row without candidates
        return _keep_largest(scaled, values, kept.sum(-1, keepdim=True))

    return keep


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
