"""A bank is one file, always the same one, and serves nothing but what it was made for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bank_policies import BANK, TIMES, bank_for
from entmtp.errors import ArtefactError, BadInput
from entmtp.scheduler import (
    MadeFor,
    OfBatch,
    Signals,
    ThroughputPolicy,
    TreeBank,
    policy_from_bank,
    read_bank,
    write_bank,
)
from entmtp.scheduler.bank import Finalist, Interval
from entmtp.scheduler.bank_file import bank_text
from entmtp.scheduler.registry import POLICIES

MADE_FOR = MadeFor("target", "heads", "eager", "float32", "a machine")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    write_bank(bank_for(MADE_FOR), path)
    assert read_bank(path) == bank_for(MADE_FOR)
    assert [each.name for each in tmp_path.iterdir()] == ["bank.json"]
    # As many digits as mean something, whatever the last bits.
    rates = {"throughput": 2.0 + 1e-12, "per-step": 2.125}
    timing = replace(bank_for(MADE_FOR).timing, rates=rates)
    write_bank(bank_for(MADE_FOR, timing=timing), tmp_path / "other.json")
    assert (tmp_path / "other.json").read_bytes() == path.read_bytes()


def test_a_bank_of_the_first_version_takes_switches_for_free(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    bank = bank_for(MADE_FOR)
    dear = tuple(
        one._replace(times=replace(one.times, switch_seconds=0.25))
        for one in bank.timing.step_times
    )
    write_bank(replace(bank, timing=replace(bank.timing, step_times=dear)), path)
    assert read_bank(path).timing.step_times == dear
    content = json.loads(path.read_text())
    content["schema_version"] = 1
    for one in content["timing"]["step_times"]:
        assert one["times"].pop("switch_seconds") == 0.25
    path.write_text(json.dumps(content))
    assert read_bank(path) == bank


def test_a_bank_of_the_second_version_takes_looks_for_free(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    bank = bank_for(MADE_FOR)
    dear = tuple(
        one._replace(times=replace(one.times, root_seconds=0.25, read_seconds=0.5))
        for one in bank.timing.step_times
    )
    write_bank(replace(bank, timing=replace(bank.timing, step_times=dear)), path)
    assert read_bank(path).timing.step_times == dear
    content = json.loads(path.read_text())
    assert content["schema_version"] == 5
    content["schema_version"] = 2
    for one in content["timing"]["step_times"]:
        assert one["times"].pop("root_seconds") == 0.25
        assert one["times"].pop("read_seconds") == 0.5
    path.write_text(json.dumps(content))
    assert read_bank(path) == bank


def test_a_bank_of_the_third_version_is_for_any_number_of_threads(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    ours, more = replace(MADE_FOR, num_threads=2), replace(MADE_FOR, num_threads=8)
    write_bank(bank_for(ours), path)
    read_bank(path).check_made_for(ours)
    with pytest.raises(ArtefactError, match="was made for num threads 2, not 8; make one with"):
        read_bank(path).check_made_for(more)
    content = json.loads(path.read_text())
    content["schema_version"] = 3
    assert content["made_for"].pop("num_threads") == 2
    path.write_text(json.dumps(content))
    for any_number in (ours, more):
        read_bank(path).check_made_for(any_number)


BATCHES = (OfBatch(2, TIMES), OfBatch(8, replace(TIMES, verify_seconds=(2.0, 2.5, 3.0, 9.0))))


def with_batches(bank: TreeBank) -> TreeBank:
    timed = tuple(one._replace(batches=BATCHES) for one in bank.timing.step_times)
    return replace(bank, timing=replace(bank.timing, step_times=timed))


def test_times_of_batches_are_read_as_they_were_written(tmp_path: Path) -> None:
    bank = with_batches(bank_for(MADE_FOR))
    write_bank(bank, tmp_path / "bank.json")
    assert read_bank(tmp_path / "bank.json") == bank


def test_a_bank_of_the_fourth_version_has_times_and_a_tree_of_one_sequence(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    bank = bank_for(MADE_FOR)
    write_bank(with_batches(bank), path)
    content = json.loads(path.read_text())
    content["schema_version"] = 4
    assert content["timing"].pop("best_in_company") == [2, 1]
    for one in content["timing"]["step_times"]:
        assert len(one.pop("batches")) == 2
    path.write_text(json.dumps(content))
    assert read_bank(path) == replace(bank, timing=replace(bank.timing, best_in_company=()))
    assert policy_from_bank("static", read_bank(path)).trees == (BANK[2],)


def test_the_static_tree_is_that_of_so_many_sequences() -> None:
    bank = bank_for(MADE_FOR)
    bank = replace(bank, timing=replace(bank.timing, best_in_company=(0, 1)))
    policy = policy_from_bank("static", bank)
    assert set(policy.trees) == set(BANK)
    assert policy.num_rows == {BANK[2].num_nodes}, "runtimes make ready for one sequence"
    selection = policy.begin(0)
    for number, place in ((1, 2), (2, 0), (3, 1), (9, 1)):
        assert selection.widest(Signals(4, 0, num_sequences=number)) == BANK[place]
    # The clock has its word only on what ran.
    ran = replace(bank, timing=replace(bank.timing, live=LIVE))
    assert ran.static_trees == (BANK[1], BANK[0], BANK[1])


LIVE = (
    Finalist("static", (1,), 1.0, Interval(1.0, 1.0, 1.0), 12),
    Finalist("static", (2,), 1.01, Interval(0.98, 0.95, 1.01), 5),
    Finalist("throughput", (), 1.02, Interval(1.03, 1.01, 1.05), 12),
)


def test_the_best_static_tree_is_the_one_that_was_fastest_live(tmp_path: Path) -> None:
    bank = bank_for(MADE_FOR)
    assert bank.best_static == BANK[2]
    ran = replace(bank, timing=replace(bank.timing, live=LIVE))
    assert ran.best_static == BANK[1]
    assert policy_from_bank("static", ran).trees[0] == BANK[1]
    path = tmp_path / "bank.json"
    write_bank(ran, path)
    assert read_bank(path) == ran
    # A file of before has none, and its recommendation stands.
    content = json.loads(path.read_text())
    content["schema_version"] = 2
    del content["timing"]["live"]
    path.write_text(json.dumps(content))
    assert read_bank(path) == bank


@pytest.mark.parametrize(
    "live",
    [
        LIVE[1:][::-1],
        (*LIVE, replace(LIVE[1], trees=(3,))),
        (*LIVE, replace(LIVE[1], trees=())),
        (*LIVE, replace(LIVE[2], trees=(0,))),
        (*LIVE, replace(LIVE[2], policy="random")),
    ],
)
def test_finalists_that_contradict_themselves_are_refused(live: tuple[Finalist, ...]) -> None:
    bank = bank_for(MADE_FOR)
    with pytest.raises(ArtefactError, match="a bank needs finalists, a static tree first"):
        replace(bank, timing=replace(bank.timing, live=live))


def test_only_a_finalist_is_recommended() -> None:
    bank = bank_for(MADE_FOR)
    with pytest.raises(ArtefactError, match="a recommended policy, of the finalists"):
        replace(bank, timing=replace(bank.timing, live=LIVE, recommended="ladder"))


def test_only_the_last_section_depends_on_the_clock() -> None:
    bank = bank_for(MADE_FOR)
    slower = replace(bank, timing=replace(bank.timing, chosen=(1,), rates={"throughput": 1.0}))
    before, behind = bank_text(bank).split('"timing"')
    assert bank_text(slower).split('"timing"')[0] == before
    assert bank_text(slower).split('"timing"')[1] != behind


def test_every_policy_comes_from_a_bank() -> None:
    bank = bank_for(MADE_FOR)
    for name in POLICIES:
        policy = policy_from_bank(name, bank)
        assert policy.name == name
        assert policy.num_rows
        policy.begin(0)
    assert policy_from_bank("static", bank).trees == (BANK[2], BANK[1])
    with pytest.raises(BadInput, match="no policy over a bank is called 'best'; known: static,"):
        policy_from_bank("best", bank)


def test_throughput_chooses_among_what_is_offered_larger_trees_too() -> None:
    timing = replace(bank_for(MADE_FOR).timing, chosen=(0,), offered=(0, 2))
    bank = bank_for(MADE_FOR, timing=timing)
    assert bank.best_static == BANK[0]
    policy = policy_from_bank("throughput", bank)
    assert isinstance(policy, ThroughputPolicy)
    assert policy.bank == (BANK[0], BANK[2])


def test_a_bank_that_contradicts_itself_says_whose_parameters() -> None:
    timing = replace(bank_for(MADE_FOR).timing, rates={})
    with pytest.raises(ArtefactError, match=r"parameters of throughput .*no rate of 'throughput'"):
        policy_from_bank("throughput", bank_for(MADE_FOR, timing=timing))
    timing = replace(timing, ladder=replace(timing.ladder, trees=(0, 1, 2)))
    with pytest.raises(ArtefactError, match=r"parameters of ladder .*3 trees"):
        policy_from_bank("ladder", bank_for(MADE_FOR, timing=timing))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("target", "target target, not other"),
        ("heads", "heads heads, not other"),
        ("runtime", "runtime eager, not other"),
        ("number_format", "number format float32, not other"),
        ("machine", "machine a machine, not other"),
    ],
)
def test_what_it_was_not_made_for_is_named(name: str, said: str) -> None:
    bank = bank_for(MADE_FOR)
    bank.check_made_for(MADE_FOR)
    with pytest.raises(ArtefactError, match=f"my bank was made for {said}; make one"):
        bank.check_made_for(replace(MADE_FOR, **{name: "other"}), "my bank")


BROKEN: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda c: c.update(schema_version=9), "has schema version 9, this program reads 5"),
    (lambda c: c.pop("schema_version"), "has schema version None"),
    (lambda c: c.pop("trees"), "bank holds .*, not"),
    (lambda c: c.update(more=1), "bank holds .*'more'"),
    (lambda c: c["trees"].pop(), "a bank needs tokens_per_second for each tree"),
    (lambda c: c["trees"].reverse(), "a bank needs trees ascending in size"),
    (lambda c: c["trees"][0]["tree"].append([4, 4]), r"path \[4, 4\] has no parent"),
    (lambda c: c["trees"][0].update(tree=3), r"trees\[0\].tree is no list"),
    (lambda c: c["trees"].append(c["trees"][2]), "a bank needs trees that differ"),
    (lambda c: c["timing"].update(chosen=[2, 1]), "a bank needs chosen places"),
    (lambda c: c["timing"].update(offered=[0, 3]), "a bank needs offered places"),
    (lambda c: c["timing"]["ladder"].update(trees=[]), "a bank needs a ladder's places"),
    (lambda c: c["timing"].update(recommended="random"), "a bank needs a recommended policy"),
    (lambda c: c["timing"].update(chosen=[True]), r"chosen\[0\] is True, not of type int"),
    (lambda c: c["timing"].update(sizes=[1.5]), r"sizes\[0\] is 1.5, not of type int"),
    (lambda c: c["timing"]["rates"].update(throughput="2"), "rates.throughput is '2'"),
    (lambda c: c["timing"]["rates"].update(throughput=float("nan")), "throughput is nan"),
    (lambda c: c["timing"]["ladder"].update(score=None), "ladder.score is None"),
    (lambda c: c["timing"]["hysteresis"].update(big=7), "a bank needs small and big places"),
    (lambda c: c["timing"]["step_times"].reverse(), "step times that ascend"),
    (lambda c: c["timing"]["step_times"][0]["batches"].reverse(), "the same batch sizes from 2"),
    (lambda c: c["timing"]["step_times"][0]["batches"].pop(), "the same batch sizes from 2 up"),
    (lambda c: [one["batches"][0].update(batch_size=1) for one in c["timing"]["step_times"]], "2"),
    (
        lambda c: c["timing"]["step_times"][1]["batches"][0]["times"]["draft_seconds"].pop(),
        "the same batch sizes",
    ),
    (lambda c: c["timing"].update(best_in_company=[2, 3]), "a bank needs places of trees in comp"),
    (lambda c: c["timing"]["step_times"][0]["times"]["rows"].reverse(), "step times need"),
    (lambda c: c["timing"]["step_times"][0]["times"].update(switch_seconds=-1), "below 0"),
    (lambda c: c["acceptance"]["by_depth"][0]["levels"].reverse(), "never fall"),
    (lambda c: c["acceptance"]["by_depth"][0]["edges"].pop(), "one level more than edges"),
    (lambda c: c["acceptance"].update(stages={}), "stages is no list"),
    (lambda c: c["timing"]["rates"].update(throughput=10**400), "rates.throughput is 1000"),
    (lambda c: c["timing"]["rates"].update(throughput=1e130), r"rates.throughput is 1e\+130"),
    (lambda c: c["made_from"].update(seed=-(10**30)), "made_from.seed is -1000"),
    (lambda c: c["trees"][0]["tree"].append([10**130]), r"trees\[0\].tree\[2\]\[0\] is 1000"),
    (lambda c: c["made_for"].update(machine="\ud800"), "made_for.machine holds half a surrogate"),
    (lambda c: c["timing"]["rates"].update(throughput=-2), "a bank needs figures from 0 up"),
    (lambda c: c["timing"]["oracle_bounds"].update({"full oracle": -1}), "figures from 0 up"),
    (lambda c: c["timing"]["tokens_per_second"][0].update(value=9), "each inside its interval"),
    (lambda c: c["trees"][0]["mean_acceptance_length"].update(low=-1), "figures from 0 up"),
    (lambda c: c["timing"].update(sizes=[0, 3]), "a bank needs figures"),
    (lambda c: c["timing"]["step_times"][0].update(num_tokens=-1), "a bank needs figures"),
    (lambda c: c["acceptance"].update(reach=[1.5, 0.5, 0.5, 0.5]), "a bank needs figures"),
    (lambda c: c["made_from"].update(num_prompts=-1), "a bank needs figures"),
    (lambda c: c["made_from"].update(temperature=-0.5), "a bank needs figures"),
    (lambda c: c["made_for"].update(num_threads=-1), "a bank needs figures"),
    (
        lambda c: c["timing"]["step_times"][0]["times"].update(width_seconds=[0, 0, 0, -1]),
        "step times need .* nothing below 0",
    ),
]


@pytest.mark.parametrize(("change", "said"), BROKEN)
def test_a_broken_file_is_one_line(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    path = tmp_path / "bank.json"
    content = json.loads(bank_text(with_batches(bank_for(MADE_FOR))))
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(ArtefactError, match=said) as caught:
        read_bank(path)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith("; make it again with `entmtp calibrate`")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", "[" * 100_000])
def test_what_is_no_bank_at_all(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bank.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ArtefactError, match=r"bank\.json is broken"):
        read_bank(path)
    with pytest.raises(ArtefactError, match=r"there is no bank .*none\.json; make one with"):
        read_bank(tmp_path / "none.json")


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "bank.json"
    write_bank(bank_for(MADE_FOR), path)
    old = path.read_bytes()
    timing = replace(bank_for(MADE_FOR).timing, rates={"throughput": float("inf")})
    with pytest.raises(ArtefactError, match="all must be finite"):
        write_bank(bank_for(MADE_FOR, timing=timing), path)
    timing = replace(timing, rates={}, oracle_bounds={"x": True})  # type: ignore[dict-item]
    with pytest.raises(ArtefactError, match=r"cannot be written to .*oracle_bounds\.x is True"):
        write_bank(bank_for(MADE_FOR, timing=timing), path)
    assert path.read_bytes() == old
    assert [each.name for each in tmp_path.iterdir()] == ["bank.json"]
