"""One budget of rows for the sequences of a batch.

Knows: what rows are worth to each sequence, and what they cost together. Does not know: trees,
drafts, models.

A batch is as wide as its largest tree: a row more for one is a row more for all, and what a
sequence does not use is padding. So the budget is shared by raising the common width as long as
the sequences' marginal values *together* pay for one row each (METHOD §6.4.7): maximise
`sum of gains(width) - rate · seconds(sequences, width)`, with the rate of the whole batch; a width
other than the last step's costs a switch. Within the width each takes its own best nodes.
"""

from __future__ import annotations

from collections.abc import Sequence

from entmtp.scheduler.base import Bid, Room
from entmtp.scheduler.prices import is_switch, verify_time


def share_rows(bids: Sequence[Bid | None], floor: int = 1) -> Room | None:
    """What each sequence of the batch may use; None if nobody bids, or one is alone.

    Args:
        bids: of every sequence; None for one that takes what it takes.
        floor: rows of the largest tree among those; so many are free.
    """
    given = [bid for bid in bids if bid is not None]
    if not given or len(bids) < 2:
        return None
    rate = sum(bid.rate for bid in given)
    seconds = given[0].verify_seconds(len(bids))
    last, switch = given[0].last_rows, given[0].switch_seconds
    most = max(floor, *(len(bid.gains) for bid in given))
    best, best_value = floor, float("-inf")
    for width in range(max(1, floor), most + 1):
        gain = sum(bid.gains[min(width, len(bid.gains)) - 1] for bid in given)
        spent = verify_time(seconds, width) + switch * is_switch(width, last)
        value = gain - rate * spent
        if value > best_value:
            best, best_value = width, value
    return Room(len(bids), best)
