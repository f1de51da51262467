"""Policies by their names, from a bank.

Knows: banks and policies. Does not know: models, command lines.

A new policy is a file of its own and a line in `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from entmtp.errors import ArtefactError, BadInput
from entmtp.scheduler.adapting import Adaptation
from entmtp.scheduler.banded import HysteresisPolicy, LadderPolicy
from entmtp.scheduler.bank import TreeBank
from entmtp.scheduler.base import TreePolicy
from entmtp.scheduler.per_step import PerStepPolicy
from entmtp.scheduler.policies import StaticPolicy
from entmtp.scheduler.published import PublishedHysteresis, PublishedLadder
from entmtp.scheduler.throughput import Stage, ThroughputPolicy


def _static(bank: TreeBank, adaptation: Adaptation) -> TreePolicy:
    tree, *in_company = bank.static_trees
    return StaticPolicy(tree, in_company)


def _ladder(bank: TreeBank, adaptation: Adaptation) -> TreePolicy:
    ladder = bank.timing.ladder
    trees = [bank.trees[place].tree for place in ladder.trees]
    return LadderPolicy(trees, ladder.thresholds, ladder.score)


def _hysteresis(bank: TreeBank, adaptation: Adaptation) -> TreePolicy:
    given = bank.timing.hysteresis
    small, big = bank.trees[given.small].tree, bank.trees[given.big].tree
    return HysteresisPolicy(small, big, given.tau_on, given.tau_off, given.score)


def _published_ladder(bank: TreeBank, adaptation: Adaptation) -> TreePolicy:
    return PublishedLadder(bank.bank)


def _published_hysteresis(bank: TreeBank, adaptation: Adaptation) -> TreePolicy:
    """As in the published experiment: the bank's ends, 0.005 on g_4."""
    return PublishedHysteresis(bank.bank[0], bank.bank[-1], 0.005, 0.005, "g_4")


def _throughput(bank: TreeBank, adaptation: Adaptation) -> TreePolicy:
    offered = bank.timing.offered
    stages = [
        Stage(stage.score, tuple(stage.by_tree[place] for place in offered))
        for stage in bank.stages
    ]
    return ThroughputPolicy(
        bank.offer,
        stages if bank.timing.stops else [stages[0], stages[-1]],
        bank.timing.step_times,
        bank.timing.rates["throughput"],
        adaptation=adaptation,
    )


def _per_step(bank: TreeBank, adaptation: Adaptation) -> TreePolicy:
    return PerStepPolicy(
        bank.wide_tree,
        bank.acceptance.by_depth,
        bank.acceptance.reach,
        bank.timing.step_times,
        bank.timing.rates["per-step"],
        sizes=bank.timing.sizes,
        stops=bank.timing.stops,
        adaptation=adaptation,
    )


POLICIES: Mapping[str, Callable[[TreeBank, Adaptation], TreePolicy]] = MappingProxyType(
    {
        "static": _static,
        "ladder": _ladder,
        "hysteresis": _hysteresis,
        "throughput": _throughput,
        "per-step": _per_step,
        "ladder-as-published": _published_ladder,
        "hysteresis-as-published": _published_hysteresis,
    }
)


def policy_from_bank(name: str, bank: TreeBank, adaptation: Adaptation | None = None) -> TreePolicy:
    """The policy of a name, with a bank's trees and parameters.

    Raises:
        BadInput: no policy over a bank has this name.
        ArtefactError: the bank's parameters contradict one another.
    """
    if name not in POLICIES:
        raise BadInput(f"no policy over a bank is called {name!r}; known: {', '.join(POLICIES)}")
    try:
        return POLICIES[name](bank, adaptation or Adaptation())
    except (BadInput, KeyError, IndexError) as error:
        reason = f"no rate of {error}" if isinstance(error, KeyError) else error
        raise ArtefactError(
            f"the bank's parameters of {name} contradict one another ({reason}); make it again"
            " with `entmtp calibrate`"
        ) from error
