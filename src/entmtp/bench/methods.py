"""The methods that can be measured, each under one name, everywhere.

Knows: which heads and which policy a name stands for. Does not know: prompts, clocks, reports.
A new method is one line in `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from entmtp.bench.best_tree import TreeChoice
from entmtp.engine import Engine
from entmtp.errors import BadInput
from entmtp.heads import DraftHeads
from entmtp.measure.paired import Method
from entmtp.scheduler import PlainPolicy, StaticPolicy, TreeBank, TreePolicy, policy_from_bank
from entmtp.target import TargetModel
from entmtp.trees import Tree, medusa_63

BASELINE = "plain"
DEFAULT_SCHEDULED = "hydra"
"""Whose heads the methods with a bank draft with."""


@dataclass(frozen=True)
class HeadsInUse:
    """Heads, and what chooses trees for them where a method wants it."""

    heads: DraftHeads
    choice: TreeChoice | None = None
    """Timed here, where there is no bank"""
    bank: TreeBank | None = None

    @property
    def best_tree(self) -> Tree:
        """The best static tree: with a bank EntMTP*."""
        if self.bank is not None:
            return self.bank.best_static
        assert self.choice is not None, "choose a tree first"
        return self.choice.best.tree


@dataclass(frozen=True)
class Recipe:
    """How a method is made."""

    heads: str | None
    """Whose heads it drafts with: `medusa` or `hydra`, or None: the scheduled ones"""
    policy: Callable[[HeadsInUse], TreePolicy]
    needs_best: bool = False
    """Whether the policy wants the best static tree"""

    @property
    def needs_bank(self) -> bool:
        return self.heads is None


def _default(in_use: HeadsInUse) -> TreePolicy:
    return StaticPolicy(medusa_63().truncate(in_use.heads.num_draft_heads))


def _best(in_use: HeadsInUse) -> TreePolicy:
    return StaticPolicy(in_use.best_tree)


def _of_bank(policy: str) -> Callable[[HeadsInUse], TreePolicy]:
    def make(in_use: HeadsInUse) -> TreePolicy:
        if in_use.bank is None:
            raise BadInput(f"policy {policy} needs a bank of trees; give one")
        return policy_from_bank(policy, in_use.bank)

    return make


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "medusa-default": Recipe("medusa", _default),
        "medusa-best": Recipe("medusa", _best, needs_best=True),
        "hydra-default": Recipe("hydra", _default),
        "hydra-best": Recipe("hydra", _best, needs_best=True),
        "entmtp-ladder": Recipe(None, _of_bank("ladder")),
        "entmtp-tau": Recipe(None, _of_bank("hysteresis")),
        "entmtp-throughput": Recipe(None, _of_bank("throughput")),
        "entmtp-per-step": Recipe(None, _of_bank("per-step")),
    }
)
"""Every method beside the baseline."""


def parse_methods(names: str) -> tuple[str, ...]:
    """The methods of a comma-separated list, the baseline first, whether named or not.

    Raises:
        BadInput: one does not exist.
    """
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name != BASELINE and name not in RECIPES:
            known = ", ".join((BASELINE, *RECIPES))
            raise BadInput(f"no method {name!r}; known are {known}")
    return tuple(dict.fromkeys((BASELINE, *wanted)))


def needs_bank(name: str) -> bool:
    """Whether a method chooses from a bank of trees."""
    return name != BASELINE and RECIPES[name].needs_bank


def heads_needed(names: Sequence[str], scheduled: str = DEFAULT_SCHEDULED) -> dict[str, bool]:
    """Whose heads the methods draft with, and whether one of them wants the best tree."""
    needed: dict[str, bool] = {}
    for name in names:
        if name != BASELINE:
            recipe = RECIPES[name]
            owner = recipe.heads or scheduled
            needed[owner] = needed.get(owner, False) or recipe.needs_best
    return needed


def make_methods(
    names: Sequence[str],
    target: TargetModel,
    in_use: Mapping[str, HeadsInUse],
    *,
    scheduled: str = DEFAULT_SCHEDULED,
    pad_rows: bool = False,
) -> list[Method]:
    """The methods of those names, on a target and the heads that they need.

    The target makes room for the sizes of all of them together, so that each is as ready as it
    would be alone.

    Args:
        scheduled: whose heads the methods with a bank draft with.
        pad_rows: give every verification, plain decoding's too, the rows of the largest tree.
    """
    users = {name: _user(name, in_use, scheduled) for name in names}
    policies = {name: _policy(name, user) for name, user in users.items()}
    sizes = {tree.num_nodes for policy in policies.values() for tree in policy.trees}
    target.make_room(len({rows for policy in policies.values() for rows in policy.num_rows}))
    rows = max(sizes) if pad_rows else 1
    return [
        Method(name, Engine(target, user.heads if user else None, policies[name], min_rows=rows))
        for name, user in users.items()
    ]


def _user(name: str, in_use: Mapping[str, HeadsInUse], scheduled: str) -> HeadsInUse | None:
    return None if name == BASELINE else in_use[RECIPES[name].heads or scheduled]


def _policy(name: str, user: HeadsInUse | None) -> TreePolicy:
    return PlainPolicy() if user is None else RECIPES[name].policy(user)
