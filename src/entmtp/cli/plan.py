"""What the flags about drafting mean together, before anything was loaded.

Knows: flags, heads' folders, banks. Does not know: loaded models or heads.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from entmtp.cli.options import DEFAULT_HEADS, DraftOptions
from entmtp.engine.shipped_bank import kind_of, shipped_banks
from entmtp.errors import BadInput
from entmtp.heads import default_tree, locate_heads, trees_to_mix
from entmtp.scheduler import (
    Adaptation,
    PlainPolicy,
    RandomPolicy,
    StaticPolicy,
    TreeBank,
    TreePolicy,
    policy_from_bank,
    read_bank,
)
from entmtp.target.embedded import EMBEDDED
from entmtp.trees import medusa_63, tree_by_name

NEED_A_BANK = ("ladder", "hysteresis", "throughput", "per-step")
ADAPT = ("throughput", "per-step")
WERE_PUBLISHED = ("ladder", "hysteresis")


class BankPlan(NamedTuple):
    """A bank that may be used, and the policy that is then made of it."""

    bank: TreeBank
    policy: TreePolicy


class DraftPlan(NamedTuple):
    """Drafting as asked for, free of contradictions."""

    heads: Path | None
    policy: TreePolicy
    acceptance: str
    banks: tuple[BankPlan, ...] = ()
    """To be checked against what is loaded: the first that fits is used"""
    is_shipped: bool = False
    """Whether the banks came with the heads, and nobody named one"""
    without_bank: TreePolicy | None = None
    """What to do where a shipped bank does not fit; None if a policy of a bank was asked for"""


def plan_drafts(options: DraftOptions, model: str) -> DraftPlan:
    """What the flags mean together.

    Raises:
        BadInput: they contradict one another.
        HeadsError, TreeError, ArtefactError: heads, tree or bank are not what they should be.
    """
    policy: str | None = options.policy or (None if options.tree is None else "static")
    _check_sources(options, policy)
    bank = None
    if options.bank is not None and kind_of(options.bank) is None:
        bank = read_bank(options.bank)
    if bank is not None:
        policy = policy or bank.timing.recommended
    _check_meanings(options, policy)
    heads = options.heads
    if heads is None and model in EMBEDDED and policy != "plain":
        heads = DEFAULT_HEADS
    if policy is None and heads is None:
        policy = "plain"
    if policy != "plain" and heads is None:
        raise BadInput(f"policy {policy} needs draft heads; pass --heads, or --policy plain")
    if policy == "plain" and options.acceptance != "exact":
        raise BadInput(f"--acceptance {options.acceptance} needs drafts, and the policy is plain")
    if policy == "plain" or heads is None:
        return DraftPlan(None, PlainPolicy(), options.acceptance)
    return _plan(options, locate_heads(heads), policy, bank)


def _plan(
    options: DraftOptions, folder: Path, policy: str | None, bank: TreeBank | None
) -> DraftPlan:
    """Drafting with heads.

    Args:
        policy: None where nothing was asked for.
        bank: that was named.
    """
    if bank is not None:
        assert policy is not None, "a bank implies one"
        named = BankPlan(bank, _of_bank(options, policy, bank))
        return DraftPlan(folder, named.policy, options.acceptance, (named,))
    kind = kind_of(options.bank)
    # Banks are calibrated for exact acceptance.
    is_default = policy is None and options.acceptance == "exact"
    wants_bank = kind is not None or policy in NEED_A_BANK or is_default
    shipped = tuple(
        BankPlan(each, _of_bank(options, policy or each.timing.recommended, each))
        for each in (shipped_banks(folder, kind) if wants_bank else ())
    )
    if shipped:
        is_asked_for = policy is not None or kind is not None
        instead = None if is_asked_for else StaticPolicy(default_tree(folder))
        return DraftPlan(folder, shipped[0].policy, options.acceptance, shipped, True, instead)
    if policy in NEED_A_BANK:
        raise BadInput(
            f"policy {policy} needs a bank of trees; pass --bank FILE (`entmtp calibrate` makes"
            " one), or --policy static"
        )
    if policy == "random":
        return DraftPlan(folder, RandomPolicy(trees_to_mix(folder)), options.acceptance)
    tree = default_tree(folder) if options.tree is None else tree_by_name(options.tree)
    return DraftPlan(folder, StaticPolicy(tree), options.acceptance)


def _of_bank(options: DraftOptions, policy: str, bank: TreeBank) -> TreePolicy:
    name = f"{policy}-as-published" if options.as_published else policy
    return policy_from_bank(name, bank, Adaptation(is_on=not options.no_adapt))


def _check_sources(options: DraftOptions, policy: str | None) -> None:
    """Refuse a tree, a bank and a policy that contradict one another."""
    if options.tree is not None and policy != "static":
        raise BadInput(
            f"--tree {options.tree} and --policy {policy} contradict each other; leave one out"
        )
    if options.tree is not None and options.bank is not None:
        raise BadInput(
            f"--tree {options.tree} and --bank {options.bank} contradict each other; leave one out"
        )
    if options.bank is not None and policy in ("plain", "random"):
        raise BadInput(
            f"--bank {options.bank} and --policy {policy} contradict each other; leave one out"
        )


def _check_meanings(options: DraftOptions, policy: str | None) -> None:
    """Refuse flags that mean nothing to the policy."""
    for flag, is_given, policies in (
        ("--as-published", options.as_published, WERE_PUBLISHED),
        ("--no-adapt", options.no_adapt, ADAPT),
    ):
        if is_given and policy not in policies:
            raise BadInput(
                f"{flag} means nothing to policy {policy or 'static'}; give --bank FILE and"
                f" --policy {' or '.join(policies)}"
            )


def method_name(policy: TreePolicy, kind: str | None) -> str:
    """What results call this way of decoding; `hydra-default` is Hydra with `medusa-63`."""
    if kind is None:
        return PlainPolicy.name
    suffix = "default" if policy.trees == (medusa_63(),) else policy.name
    return f"{kind.rstrip('+')}-{suffix}"
