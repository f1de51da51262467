"""Promise and outcome side by side: the figures of `remedies.py`.

Knows: finished runs, replays, scores. Does not know: engines, files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinds import times_at
from remedy_adaptation import by_prior
from remedy_promises import Promises, Replayed, charged, replayed_steps
from remedy_signals import bounds_by_score, signal_rows, with_blends
from remedy_variants import REMEDIED, RIVALS, STATIC, Given, Variant

from entmtp.bench import BASELINE, Difference, MethodFigures
from entmtp.bench.breakdown import Ratios, paired_ratios
from entmtp.bench.comparison import summarise
from entmtp.calibrate.trace import RankTrace
from entmtp.measure.paired import Run, Runs

SHOWN = "decode_ratio"
"""What a promise is compared with: replay knows nothing of prompts being read"""


class Live(NamedTuple):
    """What became of it by the clock."""

    runs: Runs
    """Of each variant, in the order of the rows"""
    differences: Sequence[Difference]
    """To plain decoding's answers"""
    max_tokens: int


def told(
    given: Given, traces: Mapping[str, RankTrace], variants: Sequence[Variant], live: Live
) -> dict[str, Any]:
    """All figures.

    Args:
        traces: of each kind's rows, in the order of the live run.
    """
    bank, here = given.bank, given.bank_here
    promises, by_own_times = (
        Promises(traces, bank, times_at(one, given.evaluation), live.max_tokens)
        for one in (bank, here)
    )
    ratios = paired_ratios(live.runs, STATIC)
    apart = ratios_by_kind(live.runs, traces)
    rows = []
    for variant in variants:
        found = replayed_steps(promises.replay(variant.policies), traces, promises.times)
        figures = summarise(
            live.runs[variant.name],
            live.runs[BASELINE],
            [tree for policy in variant.policies.values() for tree in policy.trees],
            [one for one in live.differences if one.method == variant.name],
        )
        rows.append(
            {
                "name": variant.name,
                "cause": variant.cause,
                "words": variant.words,
                "replay": promises.of(promises.seconds_of(found.runs)),
                "replay_by_own_times": by_own_times.of(by_own_times.seconds_of(found.runs)),
                "live": live_figures(ratios, variant.name, figures, promises),
                "live_by_kind": {kind: dict(found[variant.name]) for kind, found in apart.items()},
                "steps": steps_of(found, live.runs[variant.name], figures),
            }
        )
    scores = with_blends(bank, given.calibration, given.evaluation)
    both = given.calibration, given.evaluation
    return {
        "variants": rows,
        "bounds": {"bank_times": promises.bounds, "own_times": by_own_times.bounds},
        "throughput_over": {name: over(live.runs, name) for name in (STATIC, *RIVALS)},
        "signals": signal_rows(bank, given.evaluation, promises.times, scores[1]),
        "by_prior": by_prior(bank, given.calibration),
        "by_score": bounds_by_score(bank, both, scores, promises),
    }


def ratios_by_kind(runs: Runs, traces: Mapping[str, RankTrace]) -> dict[str, Ratios]:
    """Against the best static tree, of each kind's prompts."""
    found, begin = {}, 0
    for kind, trace in traces.items():
        end = begin + trace.num_rows
        found[kind] = paired_ratios({name: own[begin:end] for name, own in runs.items()}, STATIC)
        begin = end
    return found


def over(runs: Runs, name: str) -> dict[str, float | None]:
    """`throughput` over another one, prompt by prompt."""
    return dict(paired_ratios(runs, name)[REMEDIED])


def live_figures(
    ratios: Ratios, name: str, figures: MethodFigures, promises: Promises
) -> dict[str, Any]:
    """By the clock, against the best static tree on the same prompts."""
    found = ratios[name]
    gains = {end: found[f"{SHOWN}{end}"] for end in ("", "_low", "_high")}
    shares = {
        f"gap_share{end}": promises.gap_share(None if ratio is None else ratio - 1)
        for end, ratio in gains.items()
    }
    return {
        **found,
        **shares,
        "tokens_per_second": figures.tokens_per_second,
        "mean_acceptance_length": figures.mean_acceptance_length,
        "num_identical": figures.num_identical,
        "num_prompts": figures.num_prompts,
    }


def steps_of(found: Replayed, runs: Sequence[Run], figures: MethodFigures) -> dict[str, Any]:
    """Milliseconds of a step by the clock and by the table, and whether both are of the same
    steps."""
    pairs = zip(runs, found.num_steps, strict=True)
    return {
        "live_milliseconds": {
            "draft": figures.draft_milliseconds,
            "verify": figures.verify_milliseconds,
            "host": figures.host_milliseconds,
        },
        **charged(found),
        "num_as_replayed": sum(run.stats.num_drafts == steps for run, steps in pairs),
    }
