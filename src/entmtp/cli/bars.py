"""A progress bar on standard error.

Knows: the terminal. Does not know: verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

Update = Callable[..., None]
"""`Progress.update` of one bar: `advance` or `completed`, `total`, `description`, `note`."""


@contextmanager
def progress_bar(name: str, total: int | None, *, is_transient: bool = False) -> Iterator[Update]:
    """Show a bar; yields what moves it. A total that is not known yet may be told by `update`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=is_transient) as progress:
        yield partial(progress.update, progress.add_task(name, total=total, note=""))
