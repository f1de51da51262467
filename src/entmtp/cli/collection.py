"""A pause of Python's garbage collector, for as long as a command gets ready.

Knows: the collector. Does not know: what is made meanwhile.

Imports and loading make a million objects that stay until the end. The collector would go through
all of them again and again, for a quarter of the time, and find nothing.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_is_one_command = False


def for_one_command() -> None:
    """This process ends with its command: what is made while that gets ready stays until then."""
    global _is_one_command
    _is_one_command = True


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect nothing inside the block; where it is for one command, never look again at what was
    made there."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if _is_one_command:  # elsewhere much of it would become garbage that nobody finds
            gc.freeze()
        if was_enabled:
            gc.enable()
