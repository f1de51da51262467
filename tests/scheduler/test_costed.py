"""Policies that count time take what is worth most, alone and in company."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise

import pytest

from bank_policies import (
    BANK,
    FREE,
    TIMES,
    WIDE,
    decide,
    log_probs_of,
    per_step,
    throughput,
)
from entmtp.scheduler import (
    Adaptation,
    Bid,
    PerStepPolicy,
    Room,
    Signals,
    Stage,
    StepChoice,
    StepFunction,
    StepTimes,
    ThroughputPolicy,
    at_any_length,
    share_rows,
)
from entmtp.scheduler.prices import Costs
from entmtp.trees import ROOT, Part, Tree

STILL = Adaptation(is_on=False)
TREE_POLICY = at_any_length(TIMES)


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


def test_wide_levels_cost_what_they_take_longer_than_a_path() -> None:
    wide = StepTimes((1, 4, 16), (1.0, 1.0, 1.0), (0.0, 0.1, 0.2), 0.0, (0.0, 0.3, 1.5))
    tree = Tree.from_paths([(0,), (1,), (2,), *((0, rank) for rank in range(12))])
    costs = Costs(at_any_length(wide), [ROOT, tree])
    assert costs.at[0].of(1).draft == pytest.approx([0.0, 0.1 + 0.3, 0.2 + 1.5])
    # Of so wide a level nothing is left over; a path of that depth would pay.
    stages = [Stage(score, (StepFunction.constant(1.2),)) for score in ("accepted", "g1")]
    for times, is_worth in ((wide, False), (replace(wide, width_seconds=()), True)):
        policy = ThroughputPolicy([tree], stages, at_any_length(times), 1.0, adaptation=STILL)
        assert (StepChoice(policy.begin(0), Signals(0, 0), 9).widest == tree) == is_worth


def test_a_look_at_the_draft_is_part_of_drafting_and_one_at_the_root_of_every_step() -> None:
    looking = replace(TIMES, root_seconds=0.02, read_seconds=0.01)
    tree = Tree.from_paths([(0,), (0, 0)])
    prices = Costs(at_any_length(looking), [tree], reads_root=True).at[0].of(1)
    assert prices.draft == pytest.approx([0.0, 0.1 + 0.01, 0.2 + 0.01])
    assert prices.host == pytest.approx(TIMES.host_seconds + 0.02)
    assert Costs(at_any_length(looking), [tree]).at[0].of(1).host == TIMES.host_seconds
    assert looking.step(3, 2) == TIMES.step(3, 2), "a static tree looks at nothing"
    # Whose first score is p0 pays for the root.
    for score, root in (("accepted", 0.0), ("p0", 0.02)):
        stages = [Stage(name, (StepFunction.constant(1.2),)) for name in (score, "g1")]
        policy = ThroughputPolicy([tree], stages, at_any_length(looking), 1.0)
        assert policy.costs.at[0].of(1).host == pytest.approx(TIMES.host_seconds + root)


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


@pytest.mark.parametrize("last", [1, 3, 5, 9, 7])
def test_another_number_of_rows_than_the_last_ones_has_its_price(last: int) -> None:
    switch = 0.3
    draw = random.Random(last)
    times = at_any_length(replace(TIMES, switch_seconds=switch))
    stays, leaves = 0, 0
    for _ in range(200):
        rate = draw.uniform(0.9, 2.5)
        stages = [
            Stage(score, tuple(_table(draw, tree.depth) for tree in BANK))
            for score in ("accepted", "sum_g")
        ]
        policy = ThroughputPolicy(BANK, stages, times, rate, adaptation=STILL)
        rate = policy.learnt().rate.value
        selection = policy.begin(0)
        StepChoice(selection, Signals(0, 0), 9)
        choice = StepChoice(selection, Signals(1, 0, num_rows=last), 9)
        if choice.widest == ROOT:
            continue
        log_probs = log_probs_of(choice.widest, draw)
        tree = decide(choice, log_probs)
        greedy = [log_probs[choice.widest.paths.index((0,) * d)] for d in range(1, 5)]
        score = sum(math.exp(sum(greedy[:d])) for d in range(1, 5))
        gains = {BANK[k]: stages[1].by_tree[k](score) for k in range(len(BANK))} | {ROOT: 0.0}
        price = {each: switch * (each.num_nodes != last) for each in gains}
        worth = {
            each: gain - rate * (TIMES.verify(each.num_nodes) + price[each])
            for each, gain in gains.items()
        }
        assert worth[tree] == pytest.approx(max(worth.values()))
        assert choice.estimate is not None
        assert choice.estimate.seconds == pytest.approx(
            TIMES.step(tree.num_nodes, choice.draft.tree.depth) + price[tree]  # type: ignore[union-attr]
        )
        stays, leaves = stays + (not price[tree]), leaves + bool(price[tree])
    assert leaves
    assert stays or last == 7


@pytest.mark.parametrize("make", [throughput, per_step])
def test_where_switches_are_dear_a_sequence_stays(make) -> None:  # type: ignore[no-untyped-def]
    """And where they are free, or there was no step before, nothing is different."""
    chosen = {}
    for switch in (0.0, 0.2, 50.0):
        times = replace(TIMES, switch_seconds=switch)
        draw = random.Random(4)
        selection, signals, sizes = make(times, STILL).begin(0), Signals(0, 0), []
        for step in range(60):
            choice = StepChoice(selection, signals, 9)
            tree = decide(choice, log_probs_of(choice.widest, draw), whole=True)
            sizes.append(tree.num_nodes)
            signals = Signals(step + 1, step % 2, num_rows=sizes[-1])
        chosen[switch] = sizes
    told = [sum(a != b for a, b in pairwise(sizes)) for sizes in chosen.values()]
    assert told[0] >= told[1] >= told[2] == 0
    assert told[0]
    assert len({sizes[0] for sizes in chosen.values()}) == 1


@pytest.mark.parametrize("make", [throughput, per_step])
def test_a_switch_is_part_of_the_time_that_the_rate_is_made_in(make) -> None:  # type: ignore[no-untyped-def]
    rates = {}
    for switch in (0.0, 0.5):
        policy = make(replace(TIMES, switch_seconds=switch), Adaptation(is_shared=True))
        selection = policy.begin(0)
        for step, rows in enumerate([1, 1, 9, 9, 1, 9, 9]):
            selection.widest(Signals(step, 0, num_rows=rows if step else 0))
            selection.promise(math.nan, 0.0, rows)
        learnt = policy.learnt()
        rates[switch] = learnt.rate.value
    assert rates[0.5] < rates[0.0]


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


@pytest.mark.parametrize("low", [0.5, 1.0])
def test_of_equally_valuable_nodes_per_step_takes_the_first_which_are_a_tree(low: float) -> None:
    """A child may be as valuable as its parent, and as the root."""
    table = StepFunction((-1.0,), (low, 1.0))
    policy = PerStepPolicy(
        WIDE, [table] * 4, [0.9] * 4, at_any_length(FREE), 2.0, stops=False, adaptation=STILL
    )
    draw = random.Random(4)
    for slots in range(1, WIDE.num_nodes + 3):
        choice = StepChoice(policy.begin(0), Signals(0, 0), 9)
        log_probs = log_probs_of(WIDE, draw)
        values = [1.0]
        for node in range(1, WIDE.num_nodes):
            values.append(values[WIDE.parents[node]] * table(log_probs[node]))
        best = sorted(range(1, WIDE.num_nodes), key=lambda node: (-values[node], node))
        part = choice.choose(log_probs, Room(2, slots))
        assert isinstance(part, Part)
        assert part.nodes == (0, *sorted(best[: slots - 1]))


def test_rows_are_shared_by_what_they_are_worth_together() -> None:
    def seconds(num_sequences: int) -> list[float]:
        return [TIMES.verify(num_sequences * rows) for rows in range(65)]

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
    # A width that is no switch is kept, unless another one is worth more than that.
    for last in (2, 3):
        for switch, kept in ((50.0, True), (1e-6, False)):
            dear = greedy._replace(last_rows=last, switch_seconds=switch)
            room = share_rows([dear] * 2)
            assert room is not None
            assert (room.num_slots == last) == kept
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
