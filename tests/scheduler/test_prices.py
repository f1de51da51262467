"""What steps of several sequences cost, from tables of a few batch sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from bank_policies import BANK, TIMES, WIDE, decide, rising
from entmtp.errors import BadInput
from entmtp.scheduler import (
    Adaptation,
    AtContext,
    OfBatch,
    PerStepPolicy,
    Signals,
    Stage,
    StepChoice,
    StepFunction,
    StepTimes,
    ThroughputPolicy,
    TreePolicy,
    at_any_length,
    share_rows,
)
from entmtp.scheduler.prices import Costs
from entmtp.trees import ROOT, Tree, chain

STILL = Adaptation(is_on=False)
ALONE = StepTimes(
    (1, 4, 16),
    (1.0, 1.3, 2.5),
    (0.0, 0.1, 0.2, 0.3, 0.4),
    0.05,
    (0.0, 0.1, 0.4),
    switch_seconds=0.1,
    root_seconds=0.02,
    read_seconds=0.01,
)
OF_4 = StepTimes(
    (1, 2, 16),
    (1.2, 2.2, 9.2),
    (0.0, 0.2, 0.4, 0.6, 0.8),
    0.15,
    (0.0, 0.2, 0.8),
    switch_seconds=0.3,
    root_seconds=0.06,
    read_seconds=0.05,
)
OF_8 = replace(OF_4, verify_seconds=(1.1, 4.0, 18.0), host_seconds=0.1)
"""A plain step is faster than that of half as many: noise"""
TIMED = AtContext(100, ALONE, (OfBatch(4, OF_4), OfBatch(8, OF_8)))


def test_a_measured_batch_size_has_its_own_times() -> None:
    assert TIMED.of_company(1) == ALONE
    of_4 = TIMED.of_company(4)
    for rows in range(1, 20):
        assert of_4.verify(rows) == pytest.approx(OF_4.verify(rows))
        for depth in range(5):
            assert of_4.step(rows, depth) == pytest.approx(OF_4.step(rows, depth))
    assert of_4.switch_seconds == pytest.approx(0.3)
    assert (of_4.root_seconds, of_4.read_seconds) == pytest.approx((0.06, 0.05))


def test_between_two_batch_sizes_every_part_is_linear_in_the_number() -> None:
    for number, share in ((2, 1 / 3), (3, 2 / 3)):
        between = TIMED.of_company(number)
        for rows in (1, 2, 3, 4, 9, 16, 30):
            for part in ("verify", "width"):
                low, high = (getattr(each, part)(rows) for each in (ALONE, OF_4))
                expected = low + share * (high - low)
                assert getattr(between, part)(rows) == pytest.approx(expected), part
        assert between.draft_seconds[3] == pytest.approx(0.3 + share * 0.3)
        assert between.host_seconds == pytest.approx(0.05 + share * 0.1)
        assert between.switch_seconds == pytest.approx(0.1 + share * 0.2)


def test_no_step_of_more_sequences_or_rows_is_shorter() -> None:
    companies = [TIMED.of_company(number) for number in range(1, 40)]
    for few, many in pairwise(companies):
        assert few.host_seconds <= many.host_seconds
        for rows in range(1, 40):
            assert few.verify(rows) <= many.verify(rows) + 1e-12
            assert many.verify(rows) <= many.verify(rows + 1) + 1e-12
    assert TIMED.of_company(8).verify(1) == pytest.approx(1.2), "that of four, not the faster 1.1"


def test_above_the_largest_batch_size_rows_go_on() -> None:
    for number in (9, 12, 24):
        for rows in (1, 2, 5, 16, 40):
            expected = TIMED.of_company(8).verify(number / 8 * rows)
            assert TIMED.of_company(number).verify(rows) == pytest.approx(expected)
    assert TIMED.of_company(12).draft_seconds == TIMED.of_company(8).draft_seconds
    endless = replace(ALONE, rows=(1, 4, 10**8))
    assert AtContext(0, endless).of_company(3).verify(5) == pytest.approx(endless.verify(15))


def test_a_bank_of_one_sequence_prices_rows_as_if_they_were_of_one() -> None:
    old = AtContext(100, TIMES)
    for number in (2, 5, 8):
        for rows in range(1, 40):
            expected = TIMES.verify(number * rows)
            assert old.of_company(number).verify(rows) == pytest.approx(expected)
        assert old.of_company(number).step(1, 3) == pytest.approx(
            TIMES.verify(number) + TIMES.draft(1, 3) + TIMES.host_seconds
        )


def test_a_price_is_made_once() -> None:
    at = Costs([TIMED], [chain(2)]).at[0]
    for number in (1, 3, 4, 20):
        assert at.of(number) is at.of(number)
        assert at.of(number).behind(2) is at.of(number).behind(2)
        assert at.of(number).behind(0) is at.of(number).verify is at.verify(number)


def test_a_batch_that_knows_fewer_levels_is_refused() -> None:
    short = replace(OF_4, draft_seconds=(0.0, 0.2))
    with pytest.raises(BadInput, match="know 1 draft levels and a tree has 2; measure as many"):
        Costs([AtContext(0, ALONE, (OfBatch(4, short),))], [chain(2)])


FLAT = StepTimes((1, 64), (1.0, 1.01), (0.0,) * 5, 0.0)
"""Rows are free for one sequence, and by this table for several too"""
STEEP = StepTimes((1, 2, 64), (1.0, 3.0, 90.0), (0.0,) * 5, 0.0)
SURE = [0.0, *(-0.05 * (1 + path[-1]) for path in WIDE.paths[1:])]


def throughput(batches: tuple[OfBatch, ...]) -> ThroughputPolicy:
    stages = [Stage(score, tuple(map(_sure, BANK))) for score in ("accepted", "sum_g")]
    return ThroughputPolicy(BANK, stages, at_any_length(FLAT, batches), 2.0, adaptation=STILL)


def _sure(tree: Tree) -> StepFunction:
    return rising(tree.depth)


def per_step(batches: tuple[OfBatch, ...]) -> PerStepPolicy:
    return PerStepPolicy(
        WIDE,
        [StepFunction((-3.0, -0.5), (0.05, 0.2, 0.8))] * WIDE.depth,
        [0.8] * WIDE.depth,
        at_any_length(FLAT, batches),
        2.0,
        adaptation=STILL,
    )


@pytest.mark.parametrize("make", [throughput, per_step])
def test_policies_take_the_table_of_as_many_sequences(make) -> None:  # type: ignore[no-untyped-def]
    """Rows that cost nothing alone are too dear for eight, and only a table can say so."""
    whole = {1: True, 8: False}
    for number, is_drafted in whole.items():
        assert (_widest(make((OfBatch(8, STEEP),)), number) != ROOT) == is_drafted
        assert _widest(make(()), number) != ROOT, "by rows alone all of it pays"


def _widest(policy: TreePolicy, number: int) -> Tree:
    signals = Signals(0, 0, num_sequences=number)
    return StepChoice(policy.begin(0), signals, 9).widest


@pytest.mark.parametrize("make", [throughput, per_step])
def test_a_width_is_shared_by_the_table_of_those_who_share_it(make) -> None:  # type: ignore[no-untyped-def]
    """Whoever was alone until now bids by the batch that it is in."""
    slots = {}
    for name, batches in (("rows", ()), ("tables", (OfBatch(8, STEEP),))):
        choices, bids = [], []
        for _ in range(8):
            choice = StepChoice(make(batches).begin(0), Signals(0, 0), 9)
            log_probs = _sure_of(choice.widest)
            choices.append(choice)
            bids.append(choice.bid(log_probs))
        room = share_rows(bids)
        assert room is not None
        slots[name] = room.num_slots
        part = choices[0].choose(log_probs, room)
        assert part.num_nodes <= room.num_slots
        estimate = choices[0].estimate
        assert estimate is not None
        table = at_any_length(FLAT, batches)[0].of_company(8)
        assert estimate.seconds == pytest.approx(table.verify(room.num_slots))
    assert slots["tables"] == 1 < slots["rows"]


def _sure_of(tree: Tree) -> list[float]:
    return [-0.05 * (1 + path[-1]) if path else 0.0 for path in tree.paths]


@pytest.mark.parametrize("make", [throughput, per_step])
def test_a_rate_is_made_in_the_time_of_the_whole_batch(make) -> None:  # type: ignore[no-untyped-def]
    """Eight plain steps at once take as long as their table says, not as eight rows of one."""
    slow = replace(FLAT, verify_seconds=(4.0, 5.0))
    policy = make((OfBatch(8, slow),))
    policy.adaptation = Adaptation(prior=0.01)
    selection = policy.begin(0)
    for step in range(300):
        choice = StepChoice(selection, Signals(step, 0, num_sequences=8, num_rows=8), 9)
        decide(choice, _sure_of(choice.widest))
    assert choice.estimate is not None
    assert choice.estimate.rate == pytest.approx(1 / 4, rel=0.1)
