"""How much each score says of what is then accepted: correlation and mutual information.

Knows: numbers side by side. Does not know: traces, times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from entmtp.calibrate.monotone import Floats, bins_of, quantile_edges
from entmtp.calibrate.scores import Score
from entmtp.calibrate.walk import Places

NUM_BINS = 16


class Association(NamedTuple):
    """A score and the drafts accepted by one tree at the starts of its own run."""

    name: str
    pearson_r: float
    """0 where one of them never changes"""
    mutual_information: float
    """In nats; with the score in up to 16 bins of equal number"""


def associate(score: Score, accepted: Places, starts: Places) -> Association:
    """Args: `accepted` `[N]` of a tree at every start; `starts` `[S]` that its run visits."""
    values, lengths = score.values[starts], accepted[starts]
    return Association(score.name, pearson(values, lengths), mutual_information(values, lengths))


def pearson(values: Floats, lengths: Places) -> float:
    """Pearson's r of `[S]` and `[S]`."""
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(lengths) == 0:
        return 0.0
    return float(np.corrcoef(values, lengths)[0, 1])


def mutual_information(values: Floats, lengths: Places) -> float:
    """Mutual information of the binned values and the lengths, in nats, not below 0.

    Counted frequencies see some where there is none: about `(rows - 1)(columns - 1) / 2n`
    (Miller and Madow), which is taken off.
    """
    if len(values) == 0:
        return 0.0
    bins = bins_of(values, quantile_edges(values, NUM_BINS))
    table = np.zeros((int(bins.max()) + 1, int(lengths.max()) + 1))
    np.add.at(table, (bins, lengths), 1)
    table = table[table.any(axis=1)][:, table.any(axis=0)]
    shares = table / table.sum()
    product = shares.sum(axis=1, keepdims=True) * shares.sum(axis=0, keepdims=True)
    seen = shares > 0
    counted = float((shares[seen] * np.log(shares[seen] / product[seen])).sum())
    excess = (table.shape[0] - 1) * (table.shape[1] - 1) / (2 * table.sum())
    return max(0.0, counted - float(excess))
