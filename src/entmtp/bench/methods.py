"""The methods that can be measured, each under one name, everywhere.

Knows: which heads and which policy a name stands for. Does not know: prompts, clocks, reports.
A new method is one line in `RECIPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from entmtp.bench.best_tree import TreeChoice
from entmtp.bench.measure import Method
from entmtp.engine import Engine
from entmtp.errors import BadInput
from entmtp.heads import DraftHeads
from entmtp.scheduler import PlainPolicy, StaticPolicy, TreePolicy
from entmtp.target import TargetModel
from entmtp.trees import medusa_63

BASELINE = "plain"


@dataclass(frozen=True)
class HeadsInUse:
    """Heads, and the best static tree for them where a method wants it."""

    heads: DraftHeads
    choice: TreeChoice | None = None


@dataclass(frozen=True)
class Recipe:
    """How a method is made."""

    heads: str
    """Whose heads it drafts with: `medusa` or `hydra`"""
    policy: Callable[[HeadsInUse], TreePolicy]
    needs_choice: bool = False
    """Whether the policy wants the best static tree"""


def _default(in_use: HeadsInUse) -> TreePolicy:
    return StaticPolicy(medusa_63().truncate(in_use.heads.num_draft_heads))


def _best(in_use: HeadsInUse) -> TreePolicy:
    assert in_use.choice is not None, "choose a tree first"
    return StaticPolicy(in_use.choice.best.tree)


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "medusa-default": Recipe("medusa", _default),
        "medusa-best": Recipe("medusa", _best, True),
        "hydra-default": Recipe("hydra", _default),
        "hydra-best": Recipe("hydra", _best, True),
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


def heads_needed(names: Sequence[str]) -> dict[str, bool]:
    """Whose heads the methods draft with, and whether one of them wants the best tree."""
    needed: dict[str, bool] = {}
    for name in names:
        if name != BASELINE:
            recipe = RECIPES[name]
            needed[recipe.heads] = needed.get(recipe.heads, False) or recipe.needs_choice
    return needed


def make_methods(
    names: Sequence[str],
    target: TargetModel,
    in_use: Mapping[str, HeadsInUse],
    *,
    pad_rows: bool = False,
) -> list[Method]:
    """The methods of those names, on a target and the heads that they need.

    Args:
        pad_rows: give every verification, plain decoding's too, the rows of the largest tree.
    """
    policies = {name: _policy(name, in_use) for name in names}
    sizes = [tree.num_nodes for policy in policies.values() for tree in policy.trees]
    rows = max(sizes) if pad_rows else 1
    return [
        Method(name, Engine(target, _heads(name, in_use), policy, min_rows=rows))
        for name, policy in policies.items()
    ]


def _policy(name: str, in_use: Mapping[str, HeadsInUse]) -> TreePolicy:
    if name == BASELINE:
        return PlainPolicy()
    return RECIPES[name].policy(in_use[RECIPES[name].heads])


def _heads(name: str, in_use: Mapping[str, HeadsInUse]) -> DraftHeads | None:
    return None if name == BASELINE else in_use[RECIPES[name].heads].heads
