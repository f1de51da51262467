"""Banks fitted on made-up traces with made-up times, as a calibration fits them."""

from __future__ import annotations

from entmtp.calibrate.assemble import Candidates, Clock, assemble
from entmtp.calibrate.rehearse import tuned
from entmtp.calibrate.trace import RankTrace
from entmtp.scheduler import MadeFor, StepTimes, TreeBank, at_any_length
from entmtp.scheduler.bank import MadeFrom
from made_traces import RISING

MADE_FOR = MadeFor("target", "heads", "eager", "float32", "a machine")


def fit(trace: RankTrace, times: StepTimes = RISING) -> TreeBank:
    """All of a bank but what the clock alone can say."""
    candidates = Candidates.of(trace, times, 0)
    origin = MadeFrom("prompts", trace.num_rows, ("code",), 0.0, 0)
    clock = Clock(times, at_any_length(times))
    return tuned(assemble(candidates, clock, MADE_FOR, origin), trace, times)
