"""A step reads the device once. Counted on the CPU, where every read is as easy to make by mistake.

`tests/gpu` counts the copies themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from confident import ConfidentPolicy
from draft_heads import KINDS, random_heads
from entmtp.decode import ExactAcceptor, Sampling
from entmtp.engine import Engine, GenerationParams, batch, drafting, engine
from entmtp.scheduler import PlainPolicy, Selection, StaticPolicy, TreePolicy
from entmtp.trees import full
from fixtures import tiny

READS = ("tolist", "item", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")


class Reading(StaticPolicy):
    """The same tree always, and a look at something."""

    def __init__(self, what: str) -> None:
        super().__init__(full(3, 3))
        self._what = what

    def begin(self, seed: int) -> Selection:
        selection = super().begin(seed)
        setattr(selection, self._what, True)
        return selection


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what reads a tensor, `copy_to_host` counting as one."""
    seen: list[str] = []
    is_copying = False
    copy = batch.copy_to_host

    def copied(*arguments: Any) -> Any:
        nonlocal is_copying
        seen.append("copy_to_host")
        is_copying = True
        result = copy(*arguments)
        is_copying = False
        return result

    def spied(name: str) -> Callable[..., Any]:
        read = getattr(torch.Tensor, name)

        def spy(*arguments: Any, **named: Any) -> Any:
            if not is_copying:
                seen.append(name)
            return read(*arguments, **named)

        return spy

    monkeypatch.setattr(batch, "copy_to_host", copied)
    for name in READS:
        monkeypatch.setattr(torch.Tensor, name, spied(name))
    # On a CPU ids are cut and trees are walked in Python's numbers.
    monkeypatch.setattr(drafting, "picked", lambda ids, slots: ids.gather(1, torch.tensor(slots)))
    monkeypatch.setattr(engine, "ExactAcceptor", lambda **_: ExactAcceptor(early_exit=False))
    return seen


@pytest.mark.parametrize(
    ("policy", "more"),
    [
        (PlainPolicy(), []),
        (StaticPolicy(full(3, 3)), []),
        (Reading("reads_root"), []),
        (Reading("reads_draft"), ["tolist"]),
        (ConfidentPolicy([full(3, 3)], stop=0.0), ["tolist"] * 3),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_reads_the_device_once(
    kind: str, policy: TreePolicy, more: list[str], reads: list[str]
) -> None:
    """More than once only where the policy looks at the draft: at the whole, or at each level."""
    running = Engine(tiny(), random_heads(tiny(), kind), policy)
    for token in range(3):
        running.add([token] * (1 + token), GenerationParams(60, Sampling(token * 0.5, top_p=0.9)))
    running.step()
    reads.clear()
    running.step()
    assert running.num_running == 3
    assert reads == [*more, "copy_to_host"]
