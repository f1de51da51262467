"""Banks that ship with heads, used where nobody asks for anything else.

Knows: where they lie, what they may serve. Does not know: flags, loaded models.

Some runtimes and number formats have one for text of all kinds, which is used by default; the
default ones also have one for each of some kinds, which are used by name.

A shipped bank serves the target, heads, runtime and number format that it was made for. On another
machine of that kind, or with another number of threads, its step times are not right to the last
percent, but still a better guess than none: they are used with a note. A bank that a user names
must fit the machine and its threads too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from entmtp.errors import BadInput
from entmtp.heads.format import PACKAGED
from entmtp.scheduler import MadeFor, TreeBank, read_bank

BANK_NAMES = ("bank.json", "bank-bfloat16.json", "bank-openvino.json")
"""The default runtime's in its default format and in bfloat16, then that of machines without it."""
KIND_NAME = "bank-{}.json"
KINDS = ("code", "maths", "chat")
"""Kinds of text that have a bank of their own."""


def kind_of(spec: str | Path | None) -> str | None:
    """The kind of text that is meant where a bank is named; None if it is a file, or none is."""
    return str(spec) if str(spec) in KINDS else None


def shipped_banks(folder: Path, kind: str | None = None) -> list[TreeBank]:
    """The banks of shipped heads for a kind of text, or for all, one for each of some runtimes
    and number formats.

    Any that merely lie beside other heads are none.

    Raises:
        ArtefactError: one is broken.
        BadInput: there is none for that kind.
    """
    names = BANK_NAMES if kind is None else (KIND_NAME.format(kind),)
    paths = [folder / name for name in names] if folder.parent == PACKAGED else []
    banks = [read_bank(path) for path in paths if path.is_file()]
    if kind is not None and not banks:
        raise BadInput(
            f"a bank for {kind} comes with shipped heads only, not with {folder.name}; give a"
            " file (`entmtp calibrate` makes one)"
        )
    return banks


def shipped_bank_for(wanted: MadeFor, banks: Sequence[TreeBank]) -> TreeBank | None:
    """The first of some shipped banks that may be used, on whatever machine."""
    return next((bank for bank in banks if serves(bank, wanted)), None)


def serves(bank: TreeBank, wanted: MadeFor) -> bool:
    """Whether a shipped bank may be used, on whatever machine and however many threads."""
    ours = bank.made_for
    return not bank.differences(replace(wanted, machine=ours.machine, num_threads=ours.num_threads))


def machine_note(bank: TreeBank, wanted: MadeFor) -> str | None:
    """What to tell where the bank's times are another machine's, or of other threads on this."""
    ours = bank.made_for
    if ours.machine != wanted.machine:
        whose = f"another machine ({ours.machine})"
    elif ours.num_threads not in (0, wanted.num_threads):
        plural = "" if ours.num_threads == 1 else "s"
        whose = f"this machine with {ours.num_threads} thread{plural}, not {wanted.num_threads}"
    else:
        return None
    return (
        f"note: trees are chosen by step times of {whose}; `entmtp calibrate` makes a bank for what"
        " is here"
    )
