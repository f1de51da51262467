"""Rules of acceptance that look right and are wrong (METHOD §5.3), and one more that is right.

Each decides about the root's children alone; the token behind an accepted child is drawn properly.

Dimension key: B sequences · T tree slots · k children · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from entmtp.decode import Acceptance, Draw
from entmtp.trees import TreeBuffers


class Verdict(NamedTuple):
    """What is said behind the root, and which child it came from."""

    token: torch.Tensor  # [B]
    child: torch.Tensor  # [B] index of the accepted child, -1 for none


class Dice:
    """Randomness that is nobody's key."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)

    def happens(self, chance: torch.Tensor) -> torch.Tensor:
        return torch.rand(chance.shape, generator=self._generator) < chance

    def draw(self, p: torch.Tensor) -> torch.Tensor:  # [B, V] -> [B]
        return torch.multinomial(p, 1, generator=self._generator)[:, 0]


Rule = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Dice], Verdict]
"""`(p [B, V], children [B, k], q [B, V], dice)`; q is what the drafter thinks."""


@dataclass(frozen=True)
class RuleAcceptor:
    """A rule in the place of the engine's own."""

    rule: Rule
    temperature: float
    q: torch.Tensor  # [V, V] the drafter's distribution behind each root

    def __call__(
        self, hidden: torch.Tensor, draft_ids: torch.Tensor, buffers: TreeBuffers, target: Draw
    ) -> Acceptance:
        assert buffers.depth == 1, "these rules are written for a root and its children"
        dice = Dice()
        logits = target.logits(hidden)
        p = (logits / self.temperature).softmax(-1)  # [B, T, V]
        token, child = self.rule(p[:, 0], draft_ids[:, 1:], self.q[draft_ids[:, 0]], dice)
        slot = child + 1
        rows = torch.arange(len(slot))
        behind = dice.draw(p[rows, slot])
        slots = torch.stack([torch.zeros_like(slot), slot], 1)
        token_ids = torch.stack([token, behind], 1)
        return Acceptance(slots, token_ids, (child >= 0).long(), logits[rows, slot])


def one_by_one(
    p: torch.Tensor, children: torch.Tensor, accept: Callable[[int], torch.Tensor]
) -> Verdict:
    """Try the children in order; `accept(i)` says which rows take child i, if still free."""
    token = torch.full(p.shape[:1], -1)
    child = torch.full(p.shape[:1], -1)
    for i in range(children.shape[1]):
        takes = accept(i) & (child < 0)
        token = torch.where(takes, children[:, i], token)
        child = torch.where(takes, i, child)
    return Verdict(token, child)


def _else(verdict: Verdict, token: torch.Tensor) -> Verdict:
    return Verdict(torch.where(verdict.child < 0, token, verdict.token), verdict.child)


def _normal(p: torch.Tensor, instead: torch.Tensor) -> torch.Tensor:
    mass = p.sum(-1, keepdim=True)
    return torch.where(mass > 0, p / mass.clamp_min(1e-12), instead)


def eagle(p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice) -> Verdict:
    """Right: accept c with p(c), else strike it out and renormalise."""
    left = p.clone()

    def accept(i: int) -> torch.Tensor:
        c = children[:, i : i + 1]
        takes = dice.happens(left.gather(1, c)[:, 0])
        left.scatter_(1, c, torch.where(takes[:, None], left.gather(1, c), 0.0))
        left.copy_(_normal(left, p))
        return takes

    verdict = one_by_one(p, children, accept)
    return _else(verdict, dice.draw(left))


def redrawn(p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice) -> Verdict:
    """One draw at the node; where no child has it, it is thrown away and drawn again."""
    x = dice.draw(p)
    return _else(one_by_one(p, children, lambda i: children[:, i] == x), dice.draw(p))


def a_draw_per_row(p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice) -> Verdict:
    """Every candidate row compares itself with a draw of its own."""
    return _else(one_by_one(p, children, lambda i: children[:, i] == dice.draw(p)), dice.draw(p))


def without_residual(
    p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice
) -> Verdict:
    """Siblings are tried with p(c), but what was rejected stays possible."""
    chance = p.gather(1, children)
    return _else(one_by_one(p, children, lambda i: dice.happens(chance[:, i])), dice.draw(p))


def one_child_without_residual(
    p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice
) -> Verdict:
    """The best child is accepted with p(c); rejected, the token is drawn from p."""
    return without_residual(p, children[:, :1], q, dice)


def as_if_sampled(p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice) -> Verdict:
    """The best child, rank-chosen, is scored as if it had been drawn from q."""
    return specinfer(p, children[:, :1], q, dice)


def specinfer(p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice) -> Verdict:
    """SpecInfer's ratios and residuals, but with children that were not drawn from q."""
    return _by_ratio(p, children, q, dice, strike_out=False)


def sequoia(p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice) -> Verdict:
    """Sequoia's, likewise."""
    return _by_ratio(p, children, q, dice, strike_out=True)


def _by_ratio(
    p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice, *, strike_out: bool
) -> Verdict:
    left, think = p.clone(), q.clone()

    def accept(i: int) -> torch.Tensor:
        c = children[:, i : i + 1]
        ratio = left.gather(1, c) / think.gather(1, c).clamp_min(1e-12)
        takes = dice.happens(ratio[:, 0])
        rest = _normal((left - think).clamp_min(0), left)
        left.copy_(torch.where(takes[:, None], left, rest))
        if strike_out:
            think.scatter_(1, c, 0.0)
            think.copy_(_normal(think, torch.full_like(think, 1 / think.shape[1])))
        return takes

    verdict = one_by_one(p, children, accept)
    return _else(verdict, dice.draw(left))


def typical(p: torch.Tensor, children: torch.Tensor, q: torch.Tensor, dice: Dice) -> Verdict:
    """Medusa's and Hydra's own: likely enough is accepted, the root is the likeliest."""
    entropy = -(p * p.log()).sum(-1)
    limit = (0.3 * torch.exp(-entropy)).clamp(max=0.09)
    chance = p.gather(1, children)
    verdict = one_by_one(p, children, lambda i: chance[:, i] > limit)
    return _else(verdict, p.argmax(-1))


WRONG = {
    rule.__name__: rule
    for rule in (
        redrawn,
        a_draw_per_row,
        without_residual,
        one_child_without_residual,
        as_if_sampled,
        specinfer,
        sequoia,
        typical,
    )
}
