"""How far must scores move until another token is drawn, filters and all?

With top-k, top-p and min-p a token may come in or fall out for the rounding of other tokens'
scores, so the gap between two scores does not say it all. Asked here is the least `move` such
that, with every score off by no more than that, a token may be the one that is drawn. It may if

* the filters can keep it: at best it rises, and all that can get below it do;
* what it cannot overtake they can drop: at worst that falls, and all that can get above it do.

Each is looked at by itself, so the true move is this or more: no honest difference looks larger.

Knows: scores, noise, filters. Does not know: models, prefixes.

Dimension key: V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from entmtp.decode import Sampling
from entmtp.decode.filters import Warper, make_warper

_NUM_HALVINGS = 40
_BARELY = 1e-4
"""Puts a score below another one."""


def least_move(
    scores: torch.Tensor,  # [V] processed, by temperature, not filtered
    noise: torch.Tensor,  # [V]
    token_id: int,
    sampling: Sampling,
) -> float:
    """The least move that may make `token_id` the drawn one; infinite if it is ruled out."""
    keep = make_warper([replace(sampling, temperature=1.0)], scores.device)
    finite = scores[scores.isfinite()]
    low, high = 0.0, float((finite.max() - finite.min() + noise.max() - noise.min()).item()) + 1.0
    if not _may_win(scores, noise, token_id, keep, high):
        return float("inf")
    if _may_win(scores, noise, token_id, keep, low):
        return 0.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        if _may_win(scores, noise, token_id, keep, middle):
            high = middle
        else:
            low = middle
    return high


def _may_win(
    scores: torch.Tensor, noise: torch.Tensor, token_id: int, keep: Warper, move: float
) -> bool:
    own = scores[token_id]
    if not own.isfinite():
        return False
    # As near below it as they can come.
    below = (own + move - _BARELY).clamp(min=scores - move, max=scores + move)
    if not _is_kept(below, token_id, own + move, keep):
        return False
    ahead = scores + noise > own + noise[token_id] + 2 * move
    if not ahead.any():
        return True
    # The likeliest of them is the hardest to drop.
    rival = int(scores.masked_fill(~ahead, -torch.inf).argmax())
    fallen = scores[rival] - move
    above = torch.where(scores + move > fallen, scores + move, scores - move)
    return not _is_kept(above, rival, fallen, keep)


def _is_kept(others: torch.Tensor, token_id: int, score: torch.Tensor, keep: Warper) -> bool:
    moved = others.clone()
    moved[token_id] = score
    return bool(keep(moved[None, None])[0, 0, token_id].isfinite())
