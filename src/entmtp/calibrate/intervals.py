"""How sure a mean over rows is: rows drawn again and again, seeded.

Knows: numbers for each row. Does not know: what they count.

Few rows understate their own spread; the interval is widened for it, by n/(n - 1) in the variance
and Student's t in place of the normal quantile.

Dimension key: R rows · B redraws.
"""

from __future__ import annotations

import math

import numpy as np

from entmtp.calibrate.monotone import Floats

NUM_REDRAWS = 1000
MIN_ROWS = 4
"""With fewer rows nothing is said of how sure it is"""
_NORMAL = 1.959963985
"""95 % of a normal distribution lie within this many deviations"""


def redraws(num_rows: int, seed: int, count: int = NUM_REDRAWS) -> Floats:
    """How often each row comes in each redraw, `[B, R]`."""
    generator = np.random.default_rng(seed)
    if num_rows == 0:
        return np.zeros((count, 0))
    drawn = generator.multinomial(num_rows, np.full(num_rows, 1 / num_rows), size=count)
    return drawn.astype(np.float64)


def half_width(samples: Floats, num_rows: int) -> float | None:  # [B]
    """Half of the 95 % interval around an estimate; None with fewer than `MIN_ROWS` rows."""
    if num_rows < MIN_ROWS:
        return None
    widening = math.sqrt(num_rows / (num_rows - 1))
    return float(samples.std()) * widening * student_quantile(num_rows - 1)


def student_quantile(degrees: int) -> float:
    """The t with P(|T| < t) = 95 %, to 1 % from 3 degrees of freedom up.

    The expansion in 1/degrees around the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    z = _NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / degrees**power for power, term in enumerate(terms, start=1))
