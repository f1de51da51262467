"""Policies over a bank, small enough for models of eight tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from entmtp.scheduler import (
    Adaptation,
    AtContext,
    HysteresisPolicy,
    LadderPolicy,
    MadeFor,
    PerStepPolicy,
    PublishedHysteresis,
    PublishedLadder,
    Selection,
    Signals,
    Stage,
    StaticPolicy,
    StepChoice,
    StepFunction,
    StepTimes,
    ThroughputPolicy,
    TreeBank,
    TreePolicy,
    at_any_length,
    identity_by_log_prob,
)
from entmtp.scheduler.bank import (
    Acceptance,
    BankTree,
    HysteresisParameters,
    Interval,
    LadderParameters,
    MadeFrom,
    Timing,
)
from entmtp.scheduler.base import Bid, DraftSignals
from entmtp.trees import ROOT, Part, Tree, chain, full

BANK = (
    Tree.from_paths([(0,), (1,)]),
    Tree.from_paths([(0,), (1,), (0, 0), (0, 3)]),
    Tree.from_paths([(0,), (1,), (3,), (0, 0), (0, 1), (3, 2), (0, 0, 0), (0, 0, 0, 0)]),
)
WIDE = Tree.from_paths(
    [
        *full(3, 2).paths,
        (5,),
        *((0, a, b) for a in range(3) for b in range(3)),
        *((0, 0, a, b) for a in range(2) for b in range(2)),
    ]
)
TIMES = StepTimes((1, 4, 16, 64), (1.0, 1.1, 1.5, 4.0), (0.0, 0.1, 0.2, 0.3, 0.4), 0.05)
"""Of steps that last about a second, with heads that cost a tenth of it a level."""
FREE = StepTimes((1, 2), (1.0, 1.0), (0.0,) * 5, 0.0)
"""Every tree at the price of the root."""


def rising(most: float) -> StepFunction:
    """Of a sum along the greedy path: from nearly nothing to `most`."""
    return StepFunction((0.5, 1.0, 2.0), (0.1, most / 4, most / 2, most))


def throughput(
    times: StepTimes = TIMES,
    adaptation: Adaptation | None = None,
    scores: Sequence[str] = ("accepted", "g1", "g2", "sum_g"),
) -> ThroughputPolicy:
    stages = [Stage(score, tuple(rising(tree.depth) for tree in BANK)) for score in scores]
    return ThroughputPolicy(BANK, stages, at_any_length(times), 2.0, adaptation=adaptation)


def per_step(
    times: StepTimes = TIMES, adaptation: Adaptation | None = None, *, stops: bool = True
) -> PerStepPolicy:
    return PerStepPolicy(
        WIDE,
        [identity_by_log_prob()] * WIDE.depth,
        [0.8, 0.7, 0.6, 0.5],
        at_any_length(times),
        2.0,
        sizes=(1, 3, 6, 12, 64),
        stops=stops,
        adaptation=adaptation,
    )


BANK_POLICIES: dict[str, Callable[[], TreePolicy]] = {
    "ladder": lambda: LadderPolicy(BANK, [0.4, 1.5]),
    "ladder-p0": lambda: LadderPolicy(BANK, [0.3, 0.6], "p0"),
    "ladder-tree-sum": lambda: LadderPolicy(BANK, [0.8, 1.8], "p0sum_tree"),
    "hysteresis": lambda: HysteresisPolicy(BANK[0], BANK[2], 0.5, 0.2, "g2"),
    "hysteresis-accepted": lambda: HysteresisPolicy(ROOT, WIDE, 0.5, 0.2, "accepted"),
    "ladder-as-published": lambda: PublishedLadder(BANK),
    "hysteresis-as-published": lambda: PublishedHysteresis(BANK[0], BANK[2], 0.3, 0.1, "g_4"),
    "throughput": throughput,
    "throughput-free": lambda: throughput(FREE, scores=("p0", "p0sum_tree")),
    "throughput-shared": lambda: throughput(adaptation=Adaptation(is_shared=True)),
    "per-step": per_step,
    "per-step-free": lambda: per_step(FREE, Adaptation(is_on=False), stops=False),
    "static-in-company": lambda: StaticPolicy(WIDE, (BANK[1], ROOT, BANK[2], chain(3))),
    "adversarial": lambda: AdversarialPolicy(),
}


class AdversarialPolicy(TreePolicy):
    """Does what is worst: no likely branches, nonsense for a bid, a stop where it is sure."""

    name = "adversarial"
    trees = (WIDE, chain(4), ROOT)

    def begin(self, seed: int) -> Selection:
        return _Adversarial(seed)


class _Adversarial(Selection):
    reads_root = reads_draft = stops_draft = bids = True

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def widest(self, signals: Signals) -> Tree:
        return (WIDE, chain(4), WIDE, ROOT)[(self._seed + signals.num_steps) % 4]

    def goes_on(self, signals: Signals, draft: DraftSignals) -> bool:
        return draft.confidences[-1] < 0.9 or signals.num_steps % 3 > 0

    def bid(self, signals: Signals, draft: DraftSignals) -> Bid:
        return Bid([0.0] * (1 + signals.num_steps % 9), 1e-9, lambda num_sequences: [0.0, 1.0])

    def choose(self, signals: Signals, draft: DraftSignals) -> Part:
        likeliest = max(draft.log_probs[1:])
        kept = [0]
        for node in range(1, draft.tree.num_nodes):
            if draft.tree.parents[node] in kept and draft.log_probs[node] < likeliest:
                kept.append(node)
        return Part(draft.tree, tuple(kept))


def bank_for(made_for: MadeFor, **changes: object) -> TreeBank:
    """A bank of the trees above, made for whatever is wanted."""
    figures = tuple(Interval(1.5 + place, 1.0 + place, 2.0 + place) for place in range(len(BANK)))
    scores = ("accepted", "g1", "g2", "sum_g")
    bank = TreeBank(
        made_for=made_for,
        made_from=MadeFrom("0123456789abcdef", 64, ("chat", "code"), 0.0, 5),
        trees=tuple(map(BankTree, BANK, figures)),
        wide_tree=WIDE,
        acceptance=Acceptance(
            stages=tuple(
                Stage(score, tuple(rising(tree.depth) for tree in BANK)) for score in scores
            ),
            blind=Stage("accepted", tuple(StepFunction((), (0.5,)) for _ in BANK)),
            by_depth=(StepFunction((-2.0, -1.0, -0.25), (0.125, 0.25, 0.5, 0.75)),) * WIDE.depth,
            reach=(0.8, 0.7, 0.6, 0.5),
        ),
        timing=Timing(
            step_times=(AtContext(0, TIMES), AtContext(1000, TIMES)),
            tokens_per_second=figures,
            chosen=(0, 2),
            offered=(0, 1, 2),
            ladder=LadderParameters("sum_g", (0, 2), (1.25,)),
            hysteresis=HysteresisParameters("g2", 0, 2, 0.5, 0.25),
            rates={"throughput": 2.0, "per-step": 2.125},
            sizes=(1, 3, 6, 12, 25),
            stops=True,
            recommended="throughput",
            live=(),
            oracle_bounds={"best static": 2.0, "full oracle": 3.5},
            looks_at_root=True,
            best_in_company=(2, 1),
        ),
    )
    return replace(bank, **changes)  # type: ignore[arg-type]


def log_probs_of(tree: Tree, draw: random.Random) -> list[float]:
    """Of a draft: children of one parent are less and less likely, and together no more than 1."""
    sharpness = draw.choice([0.2, 0.5, 0.9])
    return [
        math.log(sharpness * (1 - sharpness) ** path[-1] * draw.uniform(0.7, 1.0)) if path else 0.0
        for path in tree.paths
    ]


def signals_of(step: int, draw: random.Random) -> Signals:
    p0 = draw.random()
    return Signals(step, draw.randrange(4) if step else 0, p0, 2.0 * (1 - p0), 20 + step)


def decide(choice: StepChoice, log_probs: Sequence[float], *, whole: bool = False) -> Tree:
    """One step's choice, level by level; `whole` drafts all levels, whoever has enough."""
    for depth in range(1, choice.widest.depth):
        if not whole and not choice.goes_on(depth, log_probs):
            break
    part = choice.choose(log_probs)
    return part.tree if isinstance(part, Part) else part
