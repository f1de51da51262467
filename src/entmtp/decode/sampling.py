"""From logits to the target's own token: temperature, top-k, top-p, and a keyed draw.

Knows: logits and how a user wants them processed. Does not know: trees or drafts: plain and
speculative decoding call the same sampler, so a processor is defined once (DESIGN D3).

Dimension key: B sequences · V vocabulary · k kept candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from entmtp.decode.noise import gumbel_noise
from entmtp.errors import BadInput

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-6
"""Lower ones are lifted to this: the likeliest token wins as surely, and float32 still divides."""

Sampler = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""`(logits [B, V] float32, positions [B]) -> ids [B]`: one token of each sequence's own
distribution. `positions` is the absolute position of the token to be drawn."""


@dataclass(frozen=True)
class Sampling:
    """How one sequence's tokens are chosen."""

    temperature: float = 0.0
    """0 takes the likeliest token, ties to the lowest id"""
    top_k: int = 0
    """Keep the k likeliest tokens; 0 keeps all"""
    top_p: float = 1.0
    """Keep the likeliest tokens up to this mass; 1 keeps all"""
    seed: int = 0
    """Same seed, same text"""

    def __post_init__(self) -> None:
        if not (isfinite(self.temperature) and self.temperature >= 0):
            raise BadInput(f"temperature is {self.temperature}; give a finite number from 0 up")
        if self.top_k < 0:
            raise BadInput(f"top_k is {self.top_k}; give 0 (all) or a count")
        if not 0 < self.top_p <= 1:
            raise BadInput(f"top_p is {self.top_p}; give a number above 0 and up to 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise BadInput(f"seed is {self.seed}; give a number from 0 to 2^63 - 1")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_filtered(self) -> bool:
        return self.top_k > 0 or self.top_p < 1


def make_sampler(rows: Sequence[Sampling], device: torch.device) -> Sampler:
    """The sampler for a batch whose row b is chosen as `rows[b]` says."""
    if all(row.is_greedy for row in rows):
        return lambda logits, positions: logits.argmax(-1)
    draw = _make_drawer(rows, device)
    greedy = torch.tensor([row.is_greedy for row in rows], device=device)
    if not greedy.any():
        return draw
    return lambda logits, positions: torch.where(greedy, logits.argmax(-1), draw(logits, positions))


def _make_drawer(rows: Sequence[Sampling], device: torch.device) -> Sampler:
    seeds = torch.tensor([row.seed for row in rows], device=device)
    warp = make_warper(rows, device)

    def draw(logits: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        noise = gumbel_noise(seeds, positions, logits.shape[-1])
        return (warp(logits) + noise).argmax(-1)

    return draw


def make_warper(
    rows: Sequence[Sampling], device: torch.device
) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function `[B, V] -> [B, V]`: scaled logits, -inf outside of what top-k and top-p keep.

    The order is that of `transformers`: temperature, then top-k, then top-p. Of equal logits at
    the border the lowest ids stay. What a row keeps does not depend on the other rows. Greedy
    rows are passed at temperature 1.
    """
    heats = [max(row.temperature, MIN_TEMPERATURE) if row.temperature else 1.0 for row in rows]
    heat = torch.tensor(heats, device=device)[:, None]
    if not any(row.is_filtered for row in rows):
        return lambda logits: logits / heat
    top_k = torch.tensor([row.top_k for row in rows], device=device)[:, None]
    top_p = torch.tensor([row.top_p for row in rows], device=device)[:, None]
    # Where every row has a top-k, only that many values need to be put in order.
    most = max(row.top_k for row in rows) if all(row.top_k for row in rows) else None

    def warp(logits: torch.Tensor) -> torch.Tensor:
        scaled = logits / heat
        values = _largest(scaled, most)
        allowed = torch.where(top_k == 0, values.shape[-1], top_k.clamp(max=values.shape[-1]))
        weights = (values - values[:, :1]).exp()
        # Sums from the top alone: the same however many values were put in order.
        mass = weights.cumsum(-1)
        enough = top_p * mass.gather(-1, allowed - 1)
        kept = (mass - weights < enough) | (top_p == 1)
        kept &= torch.arange(values.shape[-1], device=device) < allowed
        kept[:, 0] = True  # rounding must not leave a row without candidates
        return _keep_largest(scaled, values, kept.sum(-1, keepdim=True))

    return warp


def _largest(scaled: torch.Tensor, most: int | None) -> torch.Tensor:
    """The `most` largest values of each row in descending order; None for all."""
    if most is None or most >= scaled.shape[-1]:
        return scaled.sort(dim=-1, descending=True).values
    return scaled.topk(most, dim=-1).values


def _keep_largest(
    scaled: torch.Tensor,  # [B, V]
    values: torch.Tensor,  # [B, k] the largest of them, descending
    num_kept: torch.Tensor,  # [B, 1]
) -> torch.Tensor:
    """-inf outside of each row's `num_kept` largest.

    Which of equal values a top-k or a sort puts first is up to their implementation, so the ids
    are chosen here: of those at the border, the lowest.
    """
    border = values.gather(-1, num_kept - 1)
    num_at_border = num_kept - (values > border).sum(-1, keepdim=True)
    at_border = scaled == border
    kept = (scaled > border) | (at_border & (at_border.cumsum(-1) <= num_at_border))
    return scaled.masked_fill(~kept, -torch.inf)
