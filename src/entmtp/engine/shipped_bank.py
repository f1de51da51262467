"""Banks that ship with heads, used where nobody asks for anything else.

Knows: where they lie, what they may serve. Does not know: flags, loaded models.

A shipped bank serves the target, heads, runtime and number format that it was made for. On another
machine of that kind its step times are not right to the last percent, but still a better guess
than none: they are used with a note. A bank that a user names must fit the machine too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from entmtp.heads.format import PACKAGED
from entmtp.scheduler import MadeFor, TreeBank, read_bank

BANK_NAMES = ("bank.json", "bank-openvino.json")
"""The default runtime's first, then that of machines without it."""


def shipped_banks(folder: Path) -> list[TreeBank]:
    """The banks of shipped heads, one for each of some runtimes; any that merely lie beside other
    heads are none.

    Raises:
        ArtefactError: one is broken.
    """
    if folder.parent != PACKAGED:
        return []
    return [read_bank(path) for name in BANK_NAMES if (path := folder / name).is_file()]


def shipped_bank_for(wanted: MadeFor, banks: Sequence[TreeBank]) -> TreeBank | None:
    """The first of some shipped banks that may be used, on whatever machine."""
    return next((bank for bank in banks if serves(bank, wanted)), None)


def serves(bank: TreeBank, wanted: MadeFor) -> bool:
    """Whether a shipped bank may be used, on whatever machine."""
    return not bank.differences(replace(wanted, machine=bank.made_for.machine))


def machine_note(bank: TreeBank, wanted: MadeFor) -> str | None:
    """What to tell where the bank's times are another machine's."""
    if bank.made_for.machine == wanted.machine:
        return None
    return (
        f"note: trees are chosen by step times of another machine ({bank.made_for.machine});"
        " `entmtp calibrate` makes a bank for this one"
    )
