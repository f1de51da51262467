"""Each policy over a bank picks what its rule says, and drafts no level that cannot matter."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import combinations
from time import perf_counter

import pytest

from bank_policies import BANK, BANK_POLICIES, FREE, TIMES, WIDE, per_step, throughput
from entmtp.errors import BadInput
from entmtp.scheduler import (
    Adaptation,
    Bid,
    DraftSignals,
    HysteresisPolicy,
    LadderPolicy,
    PerStepPolicy,
    PublishedHysteresis,
    PublishedLadder,
    Room,
    Selection,
    Signals,
    Stage,
    StepChoice,
    StepFunction,
    StepTimes,
    ThroughputPolicy,
    TreePolicy,
    at_any_length,
    identity_by_log_prob,
    share_rows,
)
from entmtp.scheduler.acceptance import Columns
from entmtp.scheduler.score import Known, reader_of, score_by_name, score_of_draft
from entmtp.trees import ROOT, Part, Tree, chain, full, medusa_63

STILL = Adaptation(is_on=False)


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


BANDED = [
    *(
        lambda score=score, thresholds=thresholds: LadderPolicy(BANK, thresholds, score)
        for score, thresholds in {
            "g1": (0.3, 0.7),
            "g3": (0.05, 0.4),
            "c2": (0.4, 0.8),
            "sum_g": (0.5, 1.5),
            "sum_tree": (0.8, 2.0),
            "p0g2": (0.1, 0.4),
            "p0sum_tree": (0.4, 1.2),
            "p0": (0.3, 0.6),
            "entropy": (-1.5, -0.5),
            "accepted": (0.8, 1.5),
        }.items()
    ),
    lambda: HysteresisPolicy(BANK[1], BANK[2], 0.4, 0.15, "g3"),
    lambda: HysteresisPolicy(BANK[0], BANK[2], 1.4, 0.7, "sum_g"),
]


@pytest.mark.parametrize("make", BANDED)
def test_levels_that_are_not_drafted_change_no_choice(make) -> None:  # type: ignore[no-untyped-def]
    draw = random.Random(5)
    short, long = make().begin(0), make().begin(0)
    picked, depths = set(), set()
    for step in range(300):
        signals = signals_of(step, draw)
        ours, whole = StepChoice(short, signals, 9), StepChoice(long, signals, 9)
        log_probs = log_probs_of(whole.widest, draw)
        tree = decide(ours, log_probs)
        assert tree == decide(whole, log_probs, whole=True)
        assert ours.estimate == whole.estimate or ours.estimate is not None
        assert ours.draft is not None
        picked.add(tree)
        depths.add(ours.draft.tree.depth)
    assert len(picked) > 1
    assert picked <= {*BANK, chain(1)}
    assert min(depths) < 4


def test_a_ladder_is_climbed_by_its_thresholds() -> None:
    policy = LadderPolicy(BANK, [0.25, 0.5], "g1")
    for value, place in ((0.1, 0), (0.2499, 0), (0.25, 1), (0.49, 1), (0.5, 2), (0.99, 2)):
        log_probs = [0.0, math.log(value), *[math.log(0.01)] * 30]
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        assert decide(choice, log_probs) == BANK[place]
        assert choice.estimate is not None
        assert choice.estimate.score == pytest.approx(value)


def test_hysteresis_starts_small_and_changes_at_its_own_thresholds() -> None:
    policy = HysteresisPolicy(BANK[0], BANK[2], 0.6, 0.3, "g1")
    selection = policy.begin(0)
    taken = []
    for value in (0.5, 0.6, 0.61, 0.5, 0.31, 0.3, 0.5, 0.9):
        log_probs = [0.0, math.log(value), *[math.log(0.01)] * 30]
        taken.append(BANK.index(decide(StepChoice(selection, Signals(0, 0), 9), log_probs)))
    assert taken == [0, 0, 2, 2, 2, 0, 0, 2]
    # The next sequence begins anew.
    log_probs = [0.0, math.log(0.5), *[math.log(0.01)] * 30]
    assert decide(StepChoice(policy.begin(1), Signals(0, 0), 9), log_probs) == BANK[0]


def published_steps(selection: Selection, steps: Sequence[tuple[float, float]]) -> list[Tree]:
    """Trees taken when p0 and the confidence of every head are these."""
    taken = []
    for step, (p0, confidence) in enumerate(steps):
        choice = StepChoice(selection, Signals(step, 0, p0, 1.0), 9)
        log_probs = [0.0, *[math.log(confidence)] * choice.widest.num_draft_tokens]
        taken.append(decide(choice, log_probs))
    return taken


def test_as_published_the_score_is_stale_and_falls_back() -> None:
    small, big = chain(2), chain(4)
    policy = PublishedHysteresis(small, big, 0.5, 0.5, "g_4")
    # Nothing was proposed yet: the score is p0, which is over tau, and the tree is big.
    # Then g_4 of the last proposal, 0.9·0.5^4, is under it. Then the small tree has no g_4: p0.
    steps = [(0.9, 0.5), (0.9, 1.0), (0.9, 1.0), (0.9, 0.1)]
    assert published_steps(policy.begin(0), steps) == [big, small, big, big]
    # The next prompt starts with the last one's proposal, and its state.
    assert published_steps(policy.begin(1), [(0.9, 1.0)]) == [small]
    # A fresh policy does nothing of this.
    fresh = HysteresisPolicy(small, big, 0.5, 0.5, "g4")
    taken = published_steps(fresh.begin(0), steps)
    assert taken == [small, big, big, small]
    assert published_steps(fresh.begin(1), [(0.9, 0.9)]) == [big]


def test_as_published_the_best_path_is_p0() -> None:
    policy = PublishedLadder(BANK)
    assert policy.thresholds == pytest.approx((1 / 3, 2 / 3))
    steps = [(0.2, 0.9), (0.5, 0.1), (0.9, 0.5), (0.66, 1.0)]
    expected = [BANK[0], BANK[1], BANK[2], BANK[1]]
    assert published_steps(policy.begin(0), steps) == expected
    assert (
        published_steps(PublishedLadder(BANK, score="base_top1_prob").begin(0), steps) == expected
    )
    seldom = PublishedLadder(BANK, period=2)
    assert published_steps(seldom.begin(0), steps) == [BANK[0], BANK[0], BANK[2], BANK[2]]


def net(policy: ThroughputPolicy, place: int, gain: float, rate: float) -> float:
    return gain - rate * TIMES.verify(policy.bank[place].num_nodes)


def test_throughput_takes_what_is_worth_most() -> None:
    draw = random.Random(8)
    taken = set()
    for _ in range(200):
        rate = draw.uniform(0.9, 5.0)
        stages = [
            Stage(score, tuple(_table(draw, tree.depth) for tree in BANK))
            for score in ("accepted", "sum_g")
        ]
        policy = ThroughputPolicy(BANK, stages, at_any_length(TIMES), rate, adaptation=STILL)
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        if choice.widest == ROOT:
            continue
        log_probs = log_probs_of(choice.widest, draw)
        tree = decide(choice, log_probs)
        greedy = [log_probs[choice.widest.paths.index((0,) * d)] for d in range(1, 5)]
        score = sum(math.exp(sum(greedy[:d])) for d in range(1, 5))
        worth = {
            BANK[k]: net(policy, k, stages[1].by_tree[k](score), min(rate, 5 / 1.05))
            for k in range(len(BANK))
        }
        worth[ROOT] = -min(rate, 5 / 1.05) * TIMES.verify(1)
        assert worth[tree] == max(worth.values())
        taken.add(tree)
    assert taken == {*BANK, ROOT}


def _table(draw: random.Random, most: int) -> StepFunction:
    levels = sorted(draw.uniform(0, most) for _ in range(4))
    return StepFunction((0.4, 0.9, 1.6), tuple(levels))


def test_throughput_never_drafts_where_time_is_dearer_than_drafts() -> None:
    dear = StepTimes((1, 4, 16), (1.0, 3.0, 5.0), (0.0, 1.0, 2.0, 3.0, 4.0), 0.0)
    assert StepChoice(throughput(dear, STILL).begin(0), Signals(0, 0), 9).widest == ROOT
    assert StepChoice(per_step(dear, STILL).begin(0), Signals(0, 0), 9).widest == ROOT
    # And where it costs nothing, the most is drafted and verified.
    for policy, whole in ((throughput(FREE, STILL), BANK[2]), (per_step(FREE, STILL), WIDE)):
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        sure = [0.0, *(-0.05 * (1 + path[-1]) for path in choice.widest.paths[1:])]
        assert decide(choice, sure) == whole


def test_a_hydra_draft_stops_where_the_next_level_is_not_worth_its_time() -> None:
    tables = [StepFunction((most / 2,), (0.05, 0.8 * most)) for most in (1, 2, 4)]
    sure_by = [tuple(StepFunction((edge,), t.levels) for t in tables) for edge in (0.5, 0.8, 0.7)]
    stages = [
        Stage("accepted", sure_by[0]),
        *(Stage(f"g{d}", tables) for d, tables in enumerate(sure_by, start=1)),
    ]
    bank = ThroughputPolicy(BANK, stages, TREE_POLICY, 2.0, adaptation=STILL)
    for policy in (bank, per_step(TIMES, STILL)):
        depths = {}
        for sure in (True, False):
            choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
            value = math.log(0.97 if sure else 0.02)
            log_probs = [
                0.0,
                *(value if not any(path) else -5.0 for path in choice.widest.paths[1:]),
            ]
            decide(choice, log_probs)
            assert choice.draft is not None
            depths[sure] = choice.draft.tree.depth
        assert depths == {True: 4, False: 1}


def subtrees(tree: Tree, size: int) -> Iterator[tuple[int, ...]]:
    for rest in combinations(range(1, tree.num_nodes), size - 1):
        if all(tree.parents[node] == 0 or tree.parents[node] in rest for node in rest):
            yield rest


def test_per_step_takes_the_most_valuable_nodes_of_any_number() -> None:
    """By brute force over all trees of all sizes."""
    tree = Tree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1)])
    table = StepFunction((-3.0, -1.5, -0.7, -0.2), (0.02, 0.1, 0.3, 0.6, 0.9))
    draw = random.Random(2)
    sizes = set()
    for _ in range(60):
        rate = draw.uniform(1.0, 3.5)
        policy = PerStepPolicy(
            tree,
            [table] * 3,
            [0.9] * 3,
            at_any_length(TIMES),
            rate,
            sizes=range(1, 10),
            stops=False,
            adaptation=STILL,
        )
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        log_probs = log_probs_of(tree, draw)
        values = [1.0]
        for node in range(1, tree.num_nodes):
            values.append(values[tree.parents[node]] * table(log_probs[node]))
        best = max(
            sum(values[node] for node in rest) - rate * TIMES.verify(size)
            for size in range(1, tree.num_nodes + 1)
            for rest in subtrees(tree, size)
        )
        part = choice.choose(log_probs)
        assert isinstance(part, Part)
        got = sum(values[node] for node in part.nodes[1:])
        assert got - rate * TIMES.verify(part.num_nodes) == pytest.approx(best)
        assert choice.estimate is not None
        assert choice.estimate.num_accepted == pytest.approx(got)
        sizes.add(part.num_nodes)
    assert len(sizes) > 4


def test_rows_are_shared_by_what_they_are_worth_together() -> None:
    seconds = [0.0, *(TIMES.verify(rows) for rows in range(1, 65))]
    greedy = Bid([0.0, 0.9, 1.6, 2.2, 2.7, 3.1, 3.4], 1.5, seconds)
    modest = Bid([0.0, 0.4, 0.5], 1.0, seconds)
    for bids in ([greedy, modest], [greedy] * 6, [greedy, modest, None], [modest] * 3):
        given = [bid for bid in bids if bid]
        rate = sum(bid.rate for bid in given)
        worth = {
            width: sum(bid.gains[min(width, len(bid.gains)) - 1] for bid in given)
            - rate * TIMES.verify(width * len(bids))
            for width in range(1, 8)
        }
        room = share_rows(bids)
        assert room == Room(len(bids), max(worth, key=worth.__getitem__))
    # In company rows are dearer; and what another takes anyway is free.
    widths = [share_rows([greedy] * count) for count in (2, 8)]
    assert widths[0] is not None
    assert widths[1] is not None
    assert widths[0].num_slots > widths[1].num_slots
    assert share_rows([modest, None], floor=6) == Room(2, 6)
    assert share_rows([greedy]) is None
    assert share_rows([None, None], floor=3) is None


@pytest.mark.parametrize("make", [throughput, per_step])
def test_a_choice_in_company_keeps_to_its_room(make) -> None:  # type: ignore[no-untyped-def]
    draw = random.Random(1)
    for slots in (1, 3, 6, 12):
        policy = make(FREE, STILL)
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        log_probs = log_probs_of(choice.widest, draw)
        bid = choice.bid(log_probs)
        assert bid is not None
        assert list(bid.gains) == sorted(bid.gains)
        part = choice.choose(log_probs, Room(4, slots))
        assert part.num_nodes <= slots
        assert choice.estimate is not None
        # The step is the whole batch's.
        assert choice.estimate.seconds == pytest.approx(FREE.verify(4 * slots))
    assert part.num_nodes > 1


@pytest.mark.parametrize("name", BANK_POLICIES)
def test_only_announced_trees_near_the_end_too(name: str) -> None:
    policy = BANK_POLICIES[name]()
    draw = random.Random(3)
    selection = policy.begin(3)
    for step in range(60):
        left = step % 6
        choice = StepChoice(selection, signals_of(step, draw), left)
        assert choice.widest in {tree.truncate(left) for tree in policy.trees}
        tree = decide(choice, log_probs_of(choice.widest, draw))
        assert set(tree.paths) <= set(choice.widest.paths)


@pytest.mark.parametrize("name", BANK_POLICIES)
def test_a_decision_is_quick(name: str) -> None:
    """Loosely: this is to see a slip, not to measure (docs/scheduler.md has figures)."""
    policy = BANK_POLICIES[name]()
    draw = random.Random(6)
    selection = policy.begin(0)
    seconds = []
    for step in range(200):
        signals = signals_of(step, draw)
        started = perf_counter()
        choice = StepChoice(selection, signals, 9)
        spent = perf_counter() - started
        log_probs = log_probs_of(choice.widest, draw)
        started = perf_counter()
        choice.choose(log_probs)
        seconds.append(spent + perf_counter() - started)
    assert sorted(seconds)[len(seconds) // 2] < 1e-3


def test_scores_by_hand() -> None:
    tree = Tree.from_paths([(0,), (1,), (0, 0), (1, 0)])
    log_probs = [0.0, *map(math.log, (0.5, 0.25, 0.4, 0.8))]
    signals = Signals(3, 1, 0.6, 1.2)
    expected = {
        "p0": 0.6, "entropy": -1.2, "accepted": 2.5, "c1": 0.5, "c2": 0.4, "g1": 0.5, "g2": 0.2,
        "g4": 0.2, "sum_g": 0.7, "sum_tree": 0.75 + 0.4, "p0g2": 0.12, "p0sum_g": 0.42,
    }  # fmt: skip
    for name, value in expected.items():
        score = score_of_draft(name, tree)
        read = reader_of(score, tree)
        known = Known(signals, 2.5, read(log_probs))
        assert score.of(known) == pytest.approx(value), name
        assert score.least(known) == pytest.approx(value), name
        assert score.reads_root == (name.startswith("p0") or name == "entropy")
        # Of half a draft it says between what it can be.
        half = Known(signals, 2.5, read(log_probs[:3]))
        assert score.least(half) <= score.of(known) + 1e-12 <= score.of(half) + 2e-12
    for name in ("g0", "g", "p0p0", "gx", "sum", "", "best", "c-1"):
        with pytest.raises(BadInput, match="unknown score"):
            score_by_name(name, 4)


def test_step_functions() -> None:
    table = StepFunction((1.0, 2.0), (0.1, 0.5, 0.9))
    assert [table(x) for x in (0.0, 1.0, 1.5, 2.0, 9.0)] == [0.1, 0.5, 0.5, 0.9, 0.9]
    columns = Columns([table, StepFunction.constant(3.0), StepFunction((1.5,), (0.0, 1.0))])
    for x in (0.0, 1.0, 1.4, 1.5, 2.0):
        assert columns(x) == (table(x), 3.0, float(x >= 1.5))
    own_word = identity_by_log_prob()
    for x in (-0.01, -0.4, -1.3, -4.2):
        assert own_word(x) == pytest.approx(math.exp(x), rel=0.3)


TREE_POLICY = at_any_length(TIMES)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LadderPolicy([], []), "ladder has no trees"),
        (lambda: LadderPolicy(BANK, [0.1]), "give one threshold less than trees"),
        (lambda: LadderPolicy(BANK, [0.5, 0.5]), "strictly ascending"),
        (lambda: LadderPolicy(BANK, [0.1, 0.2], "g_4"), "unknown score 'g_4'; known: accepted, p0"),
        (lambda: HysteresisPolicy(ROOT, chain(2), 0.1, 0.2), "tau_off must not be above"),
        (lambda: PublishedLadder(BANK, score="g4"), "known: best_path_value, base_top1_prob, g_1"),
        (lambda: PublishedLadder(BANK, period=0), "the period is 0"),
        (lambda: ThroughputPolicy(BANK, [], TREE_POLICY, 1.0), "stages of \\[\\] tables"),
        (lambda: ThroughputPolicy([ROOT], [], TREE_POLICY, 1.0), "give trees that draft"),
        (lambda: throughput(scores=("sum_g", "sum_g")), "'sum_g' is no score before drafting"),
        (lambda: throughput(StepTimes((1,), (1.0,), (0.0, 0.1), 0.0)), "know 1 draft levels"),
        (lambda: throughput(StepTimes((1,), (0.0,), (0.0,) * 5, 0.0)), "takes no time"),
        (lambda: PerStepPolicy(ROOT, [], [], TREE_POLICY, 1.0), "needs a tree that drafts"),
        (lambda: PerStepPolicy(chain(2), [], [], TREE_POLICY, 1.0), "acceptance has 0 entries"),
        (
            lambda: PerStepPolicy(chain(1), [StepFunction.constant(1.5)], [0.5], TREE_POLICY, 1.0),
            "are probabilities",
        ),
        (lambda: PerStepPolicy(chain(1), [StepFunction.constant(0.5)], [0.5], (), 1.0), "at least"),
        (lambda: StepFunction((1.0,), (1.0,)), "one level more than edges"),
        (lambda: StepFunction((2.0, 1.0), (1.0, 2.0, 3.0)), "must ascend strictly"),
        (lambda: StepFunction((1.0,), (2.0, 1.0)), "never fall"),
        (lambda: StepTimes((2, 4), (1.0, 2.0), (0.0,), 0.0), "rows ascending from 1"),
    ],
)
def test_what_cannot_work_is_refused(make, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput, match=said):
        make()


def test_a_policy_may_be_given_any_tree() -> None:
    """Banks are not nested, and may have gaps where siblings would be."""
    odd = (Tree.from_paths([(3,)]), Tree.from_paths([(0,), (1,), (1, 2), (1, 2, 0)]), medusa_63())
    policy: TreePolicy = LadderPolicy(odd, [0.5, 1.0], "sum_tree")
    selection = policy.begin(0)
    draw = random.Random(1)
    for step in range(50):
        choice = StepChoice(selection, Signals(step, 0), 9)
        assert decide(choice, log_probs_of(choice.widest, draw)) in odd
    draft = DraftSignals(full(2, 2))
    assert draft.room is None
