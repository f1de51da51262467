"""What a target can make ready before it is asked: by default nothing, because all is.

Knows: numbers of rows. Does not know: models, runtimes.
"""

from __future__ import annotations

from collections.abc import Collection


class Readiness:
    """Of a target, for steps of certain sizes."""

    @property
    def max_pinned_rows(self) -> int | None:
        """Row counts that `warm_up` can make ready at a time; None where there is no limit."""
        return None

    def warm_up(self, num_rows: Collection[int]) -> None:
        """Make steps of these many rows ready, so that the first request need not wait for it."""
        del num_rows

    def make_room(self, num_sizes: int = 0) -> None:
        """Forget what `warm_up` has made ready, and let it do so for at least `num_sizes` row
        counts from now on, whatever memory that takes. For those who compare."""
        del num_sizes
