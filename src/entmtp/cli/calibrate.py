"""`entmtp calibrate`: a bank of trees for a model, its heads, a workload and this machine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from entmtp.calibrate.answers import AnswerConfig
from entmtp.calibrate.live import LiveConfig
from entmtp.calibrate.live_numbers import finalist_name, live_numbers
from entmtp.calibrate.pictures import need_matplotlib
from entmtp.calibrate.pipeline import BATCH_SIZE, Calibration, CalibrationConfig, calibrate
from entmtp.calibrate.report import check_place, given_up, write_report
from entmtp.calibrate.study import study
from entmtp.calibrate.timing import TimingConfig
from entmtp.calibrate.work_folder import is_ours, work_folder
from entmtp.cli.bars import Update, progress_bar
from entmtp.cli.flags import AsJson
from entmtp.cli.options import DEFAULT_HEADS, TargetOptions, with_options
from entmtp.cli.places import (
    Place,
    check_file,
    check_folder,
    check_no_file_is_a_folder,
    check_overwrites,
    given,
)
from entmtp.cli.session import busy, note, open_heads, open_target, warnings_as_notes
from entmtp.cli.workload import WorkloadOptions
from entmtp.decode import Sampling
from entmtp.decode.checks import check_count
from entmtp.errors import BadInput
from entmtp.heads import locate_heads
from entmtp.scheduler import TreeBank
from entmtp.target.embedded import EMBEDDED

MAX_BATCH_SIZE = 256
"""A bank names a tree for each number of sequences up to the largest that is timed"""


@dataclass(frozen=True)
class TextOptions(WorkloadOptions):
    """What is answered: text like that to be served."""

    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer at the most.")] = 128
    temperature: Annotated[float, typer.Option(help="Of the answers; 0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(help="Of answers at a temperature, and of all drawing.")] = 0

    def answers(self) -> AnswerConfig:
        """Raises BadInput where a value is out of its range."""
        Sampling(self.temperature, seed=self.seed)
        check_count("max_tokens", self.max_tokens, 2, None, "a count from 2 up")
        return AnswerConfig(self.temperature, self.seed, self.max_tokens)


@dataclass(frozen=True)
class PlaceOptions:
    """Where results and unfinished work lie."""

    out: Annotated[
        Path, typer.Option(metavar="FILE.json", help="The bank, for --bank of other commands.")
    ] = Path("bank.json")
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR|FILE.html",
            help="Also draw what was measured and found into a page, its numbers beside it as"
            " JSON (needs matplotlib).",
        ),
    ] = None
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Keep finished work here, for other heads of the same model; by default it lies"
            " beside the bank until that is done.",
        ),
    ] = None
    restart: Annotated[
        bool, typer.Option("--restart", help="Make work of other prompts or settings anew.")
    ] = False
    timing_seconds: Annotated[
        float, typer.Option(help="Time to spend on timing steps; be alone on the machine.")
    ] = TimingConfig.seconds
    batch_size: Annotated[
        str,
        typer.Option(
            metavar="A,B,…",
            help="Time steps of so many sequences together, too, and find their best tree; each"
            " takes about a third of --timing-seconds more. 1 always takes part, and alone if"
            " nothing else is asked for.",
        ),
    ] = str(BATCH_SIZE)
    live_seconds: Annotated[
        float,
        typer.Option(
            help="Time for the best policies and static trees to answer prompts in turn: what is"
            " surely faster is recommended. More time makes surer; 0 recommends a static tree."
        ),
    ] = LiveConfig.seconds

    def batch_sizes(self) -> tuple[int, ...]:
        """Those above one, ascending.

        Raises:
            BadInput: one is no count, or too large.
        """
        found = set()
        for each in self.batch_size.split(","):
            digits = each.strip()
            is_count = digits.isdecimal() and len(digits) <= len(str(MAX_BATCH_SIZE))
            if not is_count or not 1 <= int(digits) <= MAX_BATCH_SIZE:
                raise BadInput(
                    f"--batch-size {self.batch_size}: give counts from 1 to {MAX_BATCH_SIZE} with"
                    " commas between them"
                )
            found.add(int(digits))
        return tuple(sorted(found - {1}))

    def check(self, reads: Sequence[Place]) -> Path | None:
        """The report's page, if one is wanted.

        Raises:
            BadInput: a file could not be written, whatever came of the work, or would take the
                place of another one.
        """
        for flag, seconds in (
            ("--timing-seconds", self.timing_seconds),
            ("--live-seconds", self.live_seconds),
        ):
            if not 0 <= seconds < math.inf:
                raise BadInput(f"{flag} {seconds}: give a number from 0 up")
        self.batch_sizes()
        files = given("--out", self.out)
        check_file(files[0])
        page = None if self.report is None else check_place(self.report, self.out)
        flag = "--work" if self.work else "--work, by default,"
        work = Place(flag, work_folder(self.work, self.out))
        folders = [work]
        if page is not None:
            folders.append(Place("--report", page.parent))
            files += given("--report", page, page.with_suffix(".json"))
        check_no_file_is_a_folder(files, folders)
        for folder in folders:
            check_folder(folder)
        for file in files[1:]:
            if file.path.is_dir():
                raise BadInput(f"{file} is a folder; give another name")
        _check_beside_work(work, [*files, *reads])
        check_overwrites(files, reads)
        if page is not None:
            need_matplotlib()
        return page


def _check_beside_work(work: Place, places: Sequence[Place]) -> None:
    """Raises BadInput: a file would be taken for one of the unfinished work."""
    for place in places:
        if place.path.resolve().parent == work.path.resolve() and is_ours(place.path.name):
            raise BadInput(
                f"{place} has the name of a file of unfinished work in {work}; give another name"
                " or folder"
            )


@with_options
def run(
    target: TargetOptions,
    text: TextOptions,
    places: PlaceOptions,
    heads: Annotated[
        str | None, typer.Option(metavar="medusa|hydra|PATH", help="The heads that draft.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure prompts and this machine, and write the bank of trees that fits both.

    The model answers the prompts; the ranks of what it said under the heads are recorded; steps
    with trees of many sizes are timed; from these two everything is computed. In the end the best
    policies and static trees answer prompts in turn, and the clock decides. An interrupted run goes
    on where it stopped. Be alone on the machine: the times are part of the bank.
    """
    page = places.check([*text.files(), *target.files(), *given("--heads", heads)])
    folder = locate_heads(_heads(heads, target.model))
    answers, prompts = text.answers(), text.load()
    model = open_target(target, runtime=target.runtime)
    loaded = open_heads(folder, model)
    config = CalibrationConfig(
        answers,
        TimingConfig(seconds=places.timing_seconds),
        LiveConfig(places.live_seconds),
        places.work,
        places.restart,
        places.batch_sizes(),
    )
    with warnings_as_notes(), _bars() as bars:
        made = calibrate(model, loaded, prompts, places.out, config, bars.show)
    if page is not None:
        with busy("drawing the report"):
            write_report(study(made), page)
    _tell(made, places)
    if as_json:
        print(json.dumps(summary(made, places), allow_nan=False))


def _heads(heads: str | None, model: str) -> str:
    if heads is None and model not in EMBEDDED:
        raise BadInput(f"{model} comes without draft heads; pass --heads")
    return heads or DEFAULT_HEADS


@dataclass
class _Bars:
    """One bar for each stage, made when its first news comes."""

    stack: ExitStack
    updates: dict[str, Update] = field(default_factory=dict)

    def show(self, stage: str, num_done: int, num_all: int) -> None:
        if stage not in self.updates:
            self.stack.close()  # one at a time on a terminal
            self.updates[stage] = self.stack.enter_context(progress_bar(stage, num_all))
        self.updates[stage](completed=num_done, total=num_all)


@contextmanager
def _bars() -> Iterator[_Bars]:
    with ExitStack() as stack:
        yield _Bars(stack)


def _tell(made: Calibration, places: PlaceOptions) -> None:
    bank, bounds = made.bank, made.bank.timing.oracle_bounds
    sizes = [tree.num_nodes for tree in bank.bank]
    print(
        f"{places.out}: trees of {sizes} nodes, and {len(bank.offer)} to choose from step by step"
    )
    print(
        f"tokens/s as predicted: plain {bounds['plain']:.1f}, the bank's static tree (nodes:"
        f" {bank.best_static.num_nodes}) {bounds['best_static']:.1f}; who knew the future: choosing"
        f" among the bank's trees {bounds['bank_perfect']:.1f}, the true path alone"
        f" {bounds['full']:.1f}; one number of nodes, ranked anew in each step"
        f" {bounds['fixed_size']:.1f}"
    )
    in_company = [f"{number}: {nodes}" for number, nodes in _sizes_by_batch(made).items()]
    print(f"nodes of the best static tree by batch size: {', '.join(in_company)}")
    if words := given_up(bounds, made.candidates.evaluation.best.tree.num_nodes):
        print(words)
    for one in made.rehearsed[1:]:
        gain = one.replayed
        sure = ""
        if gain.low is not None and gain.high is not None:
            sure = f" ({100 * gain.low:+.1f} to {100 * gain.high:+.1f})"
        print(f"  {gain.name:<11} {100 * gain.gain:+.1f} %{sure} over the static tree, by replay")
    _tell_live(bank)
    print(f"recommended: {bank.timing.recommended}")
    note(" · ".join(f"{stage} {seconds:.0f} s" for stage, seconds in made.seconds.items()))


def _sizes_by_batch(made: Calibration) -> dict[int, int]:
    """Nodes of the best static tree of each number of sequences whose steps were timed."""
    trees = made.bank.static_trees
    return {number: trees[number - 1].num_nodes for number in made.clock.batch_sizes}


def _tell_live(bank: TreeBank) -> None:
    """Each finalist beside the bank's static tree, which need not be the fastest of them."""
    if not bank.timing.live:
        return
    best, *others = live_numbers(bank)
    print(f"live, over the bank's {finalist_name(best)}:")
    for one in others:
        value, low, high = (100 * (one["measured"][key] - 1) for key in ("value", "low", "high"))
        print(
            f"  {finalist_name(one):<26} {value:+.1f} % ({low:+.1f} to {high:+.1f}) on"
            f" {one['num_prompts']} prompts; replay promised {100 * (one['promised'] - 1):+.1f} %"
        )


def summary(made: Calibration, places: PlaceOptions) -> dict[str, Any]:
    """What `--json` prints."""
    bank = made.bank
    return {
        "path": str(places.out),
        "report": None if places.report is None else str(check_place(places.report, places.out)),
        "num_prompts": bank.made_from.num_prompts,
        "recommended": bank.timing.recommended,
        "num_nodes": [tree.num_nodes for tree in bank.bank],
        "num_nodes_offered": [tree.num_nodes for tree in bank.offer],
        "static_num_nodes": bank.best_static.num_nodes,
        "static_num_nodes_by_batch_size": _sizes_by_batch(made),
        "fastest_static_num_nodes": made.candidates.evaluation.best.tree.num_nodes,
        "oracle_bounds": dict(bank.timing.oracle_bounds),
        "policies": [one.replayed._asdict() for one in made.rehearsed],
        "live": live_numbers(bank),
        "seconds": made.seconds,
    }
