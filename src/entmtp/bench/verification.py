"""One way of drafting held against plain decoding: how many outputs are the same, and why not all.

Knows: the differences of a comparison. Does not know: speed, flags, terminals.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from entmtp.bench.comparison import Comparison
from entmtp.bench.identity import Difference, Verdict
from entmtp.bench.rounding import MAX_RATIO


class Verification(NamedTuple):
    """The verdicts over one method's prompts."""

    method: str
    num_prompts: int
    differences: tuple[Difference, ...]
    """The first one of each prompt that has any: faults first, then by ratio"""

    @property
    def passed(self) -> bool:
        """Whether every difference is shown to be rounding."""
        return self.num_rounding == len(self.differences)

    @property
    def num_identical(self) -> int:
        return self.num_prompts - len(self.differences)

    @property
    def num_rounding(self) -> int:
        return self._count("rounding")

    @property
    def num_unjudged(self) -> int:
        """Of which nobody can say what they are: int8 behind its exact length"""
        return self._count("unjudged")

    @property
    def num_faults(self) -> int:
        return self._count("fault")

    @property
    def max_ratio(self) -> float | None:
        return max((one.ratio for one in self.differences if one.ratio is not None), default=None)

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "method": self.method,
            "num_prompts": self.num_prompts,
            "num_identical": self.num_identical,
            "num_rounding": self.num_rounding,
            "num_unjudged": self.num_unjudged,
            "num_faults": self.num_faults,
            "max_ratio": self.max_ratio,
            "ratio_allowed": MAX_RATIO,
        }

    def _count(self, verdict: Verdict) -> int:
        return sum(one.verdict == verdict for one in self.differences)


def summarise_differences(comparison: Comparison, method: str) -> Verification:
    """The verdicts of a comparison about one of its methods."""
    own = [one for one in comparison.differences if one.method == method]
    own.sort(key=lambda one: (one.verdict != "fault", -(one.ratio or 0.0)))
    num_prompts = len(comparison.runs[method])
    return Verification(method, num_prompts, tuple(own))
