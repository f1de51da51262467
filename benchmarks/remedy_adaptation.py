"""How fast `throughput` should follow the stream, by replay of calibration prompts alone.

Knows: banks, traces, step times. Does not know: evaluation prompts, engines.
"""

from __future__ import annotations

from typing import Any

from kinds import times_at

from entmtp.calibrate.refit import Looks, refit
from entmtp.calibrate.rehearse import run_seconds
from entmtp.calibrate.replay import replay_policy
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import halves
from entmtp.scheduler import Adaptation, StaticPolicy, TreeBank, TreePolicy, policy_from_bank

PRIORS = (6.0, 20.0, 60.0, 200.0)
"""Of evidence for one tree, what all together say is worth so many steps"""


def by_prior(bank: TreeBank, trace: RankTrace) -> list[dict[str, Any]]:
    """The gain over the best static tree for each prior and without adaptation, with the bank's
    scores and with none before drafting.

    Crosswise: tables are fitted on one half of the rows and judged on the other.
    """
    times = times_at(bank, trace)
    one, other = halves(trace)

    def seconds(judged: RankTrace, policy: TreePolicy) -> float:
        return float(run_seconds(judged, replay_policy(judged, policy), times).sum())

    static = sum(seconds(half, StaticPolicy(bank.best_static)) for half in (one, other))
    rows = []
    for looks in (Looks("p0"), Looks(None)):
        fits = [(refit(bank, a, times, looks), b) for a, b in ((one, other), (other, one))]
        ways = [Adaptation(tree_prior=prior) for prior in PRIORS] + [Adaptation(is_on=False)]
        for way in ways:
            spent = sum(seconds(b, policy_from_bank("throughput", fit, way)) for fit, b in fits)
            prior = way.tree_prior if way.is_on else None
            rows.append({"before": looks.before, "prior": prior, "gain": static / spent - 1})
    return rows
