"""From names to a ready engine: what most users need, in one call.

Knows: how the rooms below fit together. Does not know: commands, files of its own.
"""

from __future__ import annotations

import logging
from pathlib import Path

from entmtp.engine.engine import Engine
from entmtp.engine.made_for import made_for
from entmtp.engine.shipped_bank import kind_of, machine_note, shipped_bank_for, shipped_banks
from entmtp.errors import BadInput
from entmtp.heads import DraftHeads, default_tree, load_heads, locate_heads, trees_to_mix
from entmtp.scheduler import (
    RandomPolicy,
    StaticPolicy,
    TreePolicy,
    policy_from_bank,
    read_bank,
)
from entmtp.scheduler.registry import POLICIES
from entmtp.target import TargetModel
from entmtp.target.load import load_target
from entmtp.trees import Tree, tree_by_name

_WITHOUT_BANK = ("plain", "static", "random")
"""Policies that need none."""
_log = logging.getLogger(__name__)


def load(
    model: str,
    heads: str | None = None,
    tree: str | Tree | None = None,
    *,
    bank: str | Path | None = None,
    policy: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    runtime: str = "auto",
    max_batch_size: int = 8,
) -> Engine:
    """An engine for a model, with or without draft heads.

    Args:
        model: `smollm2-135m`, a checkpoint folder, a `.gguf` file, or a hub id.
        heads: `medusa` or `hydra` (shipped, for the embedded model), or a folder or file of heads,
            published ones included.
            Without heads the engine decodes plainly.
        tree: a name, a file or a `Tree`, the same in every step.
        bank: a file that `entmtp calibrate` made for all of this, or `code`, `maths` or `chat`: a
            bank for such text that comes with shipped heads. Without it and without a tree,
            shipped heads use the bank that comes with them if it fits, and else the heads' own
            tree of 16 nodes.
        policy: of the bank; the one that it recommends where it is left out. Without a bank also
            `plain` (no drafts, whatever the heads), `static` (the tree, or else the heads' own of
            16 nodes) and `random` (another one of theirs in each step, for tests).
        dtype: `float32` and `int8` (openvino, compiled; it rounds the weights), in which
            speculative output equals plain output to the token; `bfloat16`, `float16`; or `auto`:
            int8 on those, else bfloat16.
        runtime: `eager` (PyTorch), `compiled`, `openvino`, `graphs` (CUDA), or `auto`: the fastest
            that is ready.

    Raises:
        EntmtpError: something does not exist or does not fit; the message says what to do.
    """
    _check(heads, tree, bank, policy)
    target = load_target(model, dtype, device, runtime=runtime)
    if heads is None or policy == "plain":
        return Engine(target, max_batch_size=max_batch_size)
    loaded = load_heads(heads, target)
    if tree is not None:
        chosen: TreePolicy = StaticPolicy(tree_by_name(tree) if isinstance(tree, str) else tree)
    elif bank is None and policy == "static":
        chosen = StaticPolicy(default_tree(locate_heads(heads)))
    elif policy == "random":
        chosen = RandomPolicy(trees_to_mix(locate_heads(heads)))
    else:
        chosen = _scheduled(heads, target, loaded, bank, policy)
    return Engine(target, loaded, chosen, max_batch_size=max_batch_size)


def _check(
    heads: str | None, tree: str | Tree | None, bank: str | Path | None, policy: str | None
) -> None:
    """Raises BadInput: these contradict one another, or there is no such policy."""
    known = sorted({*_WITHOUT_BANK, *POLICIES})
    if policy is not None and policy not in known:
        raise BadInput(f"no policy is called {policy!r}; known: {', '.join(known)}")
    if tree is not None and (bank is not None or policy not in (None, "static")):
        raise BadInput("a tree and a bank or its policy contradict each other; leave one out")
    if bank is not None and policy in _WITHOUT_BANK and policy != "static":
        raise BadInput(f"a bank and policy {policy} contradict each other; leave one out")
    is_drafted = tree is not None or bank is not None or policy not in (None, "plain")
    if heads is None and is_drafted:
        raise BadInput("a tree, a bank and a policy are for draft heads; give heads, too")


def _scheduled(
    spec: str, target: TargetModel, heads: DraftHeads, bank: str | Path | None, policy: str | None
) -> TreePolicy:
    """The policy of a bank, or the heads' own tree where there is none to be used.

    Raises:
        ArtefactError: a bank that was asked for was made for something else.
        BadInput: a policy or a kind of text was asked for, and there is no bank.
    """
    folder = locate_heads(spec)
    wanted = made_for(target, heads)
    kind = kind_of(bank)
    if bank is not None and kind is None:
        found = read_bank(bank)
        found.check_made_for(wanted, str(bank))
        return policy_from_bank(policy or found.timing.recommended, found)
    banks = shipped_banks(folder, kind)
    shipped = shipped_bank_for(wanted, banks)
    if kind is not None and shipped is None:
        banks[0].check_made_for(wanted, f"the shipped bank for {kind}")
    if shipped is not None:
        if told := machine_note(shipped, wanted):
            _log.info(told)
        return policy_from_bank(policy or shipped.timing.recommended, shipped)
    if policy is not None:
        raise BadInput(
            f"policy {policy} needs a bank of trees made for what is loaded; give bank=FILE"
            " (`entmtp calibrate` makes one)"
        )
    return StaticPolicy(default_tree(folder))
