"""Which methods take part in a comparison, and what they need: for `demo` and `bench`.

Knows: flags, heads' folders, banks, the timing of trees. Does not know: what is shown of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from entmtp.bench import (
    BASELINE,
    RECIPES,
    Comparison,
    HeadsInUse,
    Method,
    Run,
    Task,
    choose_tree,
    compare,
    heads_needed,
    make_methods,
    needs_bank,
    parse_methods,
    try_trees,
)
from entmtp.bench.report import choices_json
from entmtp.cli.bars import progress_bar
from entmtp.cli.places import Place, given
from entmtp.cli.session import busy, note, open_heads
from entmtp.engine import GenerationParams
from entmtp.engine.made_for import made_for
from entmtp.engine.shipped_bank import kind_of, machine_note, shipped_bank_for, shipped_banks
from entmtp.errors import BadInput
from entmtp.heads import locate_heads, read_static_trees
from entmtp.scheduler import TreeBank, read_bank
from entmtp.target import TargetModel

SHIPPED_HEADS = ("medusa", "hydra")
NUM_TRIALS = 4
"""Prompts on which trees are timed"""


@dataclass(frozen=True)
class MethodOptions:
    """Who takes part."""

    methods: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,…",
            help=f"Of {BASELINE}, {', '.join(RECIPES)}; {BASELINE} always takes part.",
        ),
    ] = None
    medusa: Annotated[str, typer.Option(metavar="NAME|PATH", help="The Medusa heads.")] = "medusa"
    hydra: Annotated[str, typer.Option(metavar="NAME|PATH", help="The Hydra heads.")] = "hydra"
    bank_medusa: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|code|maths|chat", help="Bank of trees for the Medusa heads (calibrate)."
        ),
    ] = None
    bank_hydra: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|code|maths|chat",
            help="Bank of trees for the Hydra heads. With a bank the best static tree is its"
            " (EntMTP*), without one it is found by timing.",
        ),
    ] = None
    heads: Annotated[
        Literal["medusa", "hydra"],
        typer.Option(help="Whose heads and bank the entmtp methods use."),
    ] = "hydra"
    pad_rows: Annotated[
        bool,
        typer.Option(
            "--pad-rows",
            help="Pad every verification, plain decoding's too, to the rows of the largest tree:"
            " in 16 bits all then go through the same kernels.",
        ),
    ] = False

    def specs(self) -> dict[str, str]:
        return {"medusa": self.medusa, "hydra": self.hydra}

    def bank_paths(self) -> dict[str, Path]:
        paths = {"medusa": self.bank_medusa, "hydra": self.bank_hydra}
        return {owner: path for owner, path in paths.items() if path is not None}

    def files(self) -> list[Place]:
        """What is read."""
        return [
            *given("--medusa", self.medusa),
            *given("--hydra", self.hydra),
            *given("--bank-medusa", self.bank_medusa),
            *given("--bank-hydra", self.bank_hydra),
        ]

    def to_json(self) -> dict[str, Any]:
        return {
            "pad_rows": self.pad_rows,
            "heads": self.specs(),
            "banks": {owner: str(path) for owner, path in self.bank_paths().items()},
            "heads_of_entmtp": self.heads,
        }


class Lineup(NamedTuple):
    """Methods as asked for, and what they need; nothing is loaded yet."""

    names: tuple[str, ...]
    wants_best: Mapping[str, bool]
    """Whose heads are used, and whether for their best static tree"""
    folders: Mapping[str, Path]
    banks: Mapping[str, TreeBank]
    """Whose bank was named"""
    shipped: Mapping[str, Sequence[TreeBank]]
    """Whose banks came with the heads; perhaps none of them fits"""
    left_out: tuple[str, ...]
    """Methods that were not asked for by name, and have no bank"""


def plan_methods(options: MethodOptions, default: Sequence[str]) -> Lineup:
    """What the flags mean together.

    Args:
        default: takes part where no method is named, as far as there is a bank.

    Raises:
        BadInput: no such method; one that is named has no bank; a bank that nobody uses.
        HeadsError, ArtefactError: heads or a bank are not what they should be.
    """
    paths = options.bank_paths()
    names = parse_methods(options.methods if options.methods is not None else ",".join(default))
    shipped = _shipped_banks(options)
    has_bank = options.heads in paths or options.heads in shipped
    without = tuple(name for name in names if needs_bank(name) and not has_bank)
    if without and options.methods is not None:
        raise BadInput(
            f"{without[0]} needs a bank of trees for the {options.heads} heads; pass"
            f" --bank-{options.heads} FILE (`entmtp calibrate` makes one), or leave it out of"
            " --methods"
        )
    names = tuple(name for name in names if name not in without)
    wants_best = heads_needed(names, options.heads)
    for owner, path in paths.items():
        if owner not in wants_best:
            raise BadInput(
                f"--bank-{owner} {path} serves none of the methods {', '.join(names)}; leave it"
                " out, or add one that drafts with these heads"
            )
    folders = {owner: locate_heads(options.specs()[owner]) for owner in wants_best}
    shipped = {owner: found for owner, found in shipped.items() if owner in wants_best}
    banks = {owner: read_bank(path) for owner, path in paths.items() if kind_of(path) is None}
    return Lineup(names, wants_best, folders, banks, shipped, without)


def _shipped_banks(options: MethodOptions) -> dict[str, list[TreeBank]]:
    """Of the heads for which no bank is named, or a kind of text."""
    banks, paths = {}, options.bank_paths()
    for owner, spec in options.specs().items():
        kind = kind_of(paths.get(owner))
        if kind is None and (owner in paths or spec not in SHIPPED_HEADS):
            continue
        if found := shipped_banks(locate_heads(spec), kind):
            banks[owner] = found
    return banks


def ready_methods(
    options: MethodOptions, lineup: Lineup, target: TargetModel, tasks: Sequence[Task]
) -> tuple[list[Method], dict[str, HeadsInUse]]:
    """The methods, and the heads that they use.

    Methods that nobody named are left out with a note where a shipped bank does not fit.

    Raises:
        ArtefactError: a bank was made for something else than what is loaded.
    """
    in_use = {
        owner: _heads_in_use(owner, options, lineup, target, tasks) for owner in lineup.folders
    }
    names = lineup.names
    if options.heads in in_use and in_use[options.heads].bank is None:
        names = tuple(name for name in names if not needs_bank(name))
    if left_out := [name for name in lineup.names if name not in names]:
        note(f"note: left out, for want of a bank made for what is loaded: {', '.join(left_out)}")
    made = make_methods(names, target, in_use, scheduled=options.heads, pad_rows=options.pad_rows)
    return made, in_use


def _heads_in_use(
    owner: str,
    options: MethodOptions,
    lineup: Lineup,
    target: TargetModel,
    tasks: Sequence[Task],
) -> HeadsInUse:
    """Load heads and, where a method wants it and no bank has it, find their best static tree."""
    folder = lineup.folders[owner]
    heads = open_heads(folder, target)
    wanted = made_for(target, heads)
    if (named := lineup.banks.get(owner)) is not None:
        named.check_made_for(wanted, str(options.bank_paths()[owner]))
        return HeadsInUse(heads, bank=named)
    if shipped := lineup.shipped.get(owner):
        if (bank := shipped_bank_for(wanted, shipped)) is not None:
            if told := machine_note(bank, wanted):
                note(told)
            return HeadsInUse(heads, bank=bank)
        is_needed = options.methods is not None and owner == options.heads and _wants_bank(lineup)
        if is_needed or owner in options.bank_paths():
            shipped[0].check_made_for(wanted, f"the bank that ships with the {owner} heads")
    if not lineup.wants_best[owner]:
        return HeadsInUse(heads)
    trials = tasks[:NUM_TRIALS]
    with busy(f"timing trees of {folder.name}"):
        candidates = read_static_trees(folder) or try_trees(target, heads, trials)
        return HeadsInUse(heads, choose_tree(target, heads, candidates, trials))


def _wants_bank(lineup: Lineup) -> bool:
    return any(needs_bank(name) for name in lineup.names)


def best_trees_json(in_use: Mapping[str, HeadsInUse], options: MethodOptions) -> dict[str, object]:
    """Each one's best static tree, and where it is from."""
    timed = {owner: used.choice for owner, used in in_use.items() if used.choice is not None}
    return choices_json(timed) | {
        owner: {
            "num_nodes": used.best_tree.num_nodes,
            "paths": [list(path) for path in used.best_tree.paths[1:]],
            "bank": str(options.bank_paths().get(owner, "shipped")),
        }
        for owner, used in in_use.items()
        if used.bank is not None
    }


def compare_visibly(
    methods: Sequence[Method], tasks: Sequence[Task], params: GenerationParams
) -> Comparison:
    """`compare`, with a bar on standard error."""
    with progress_bar("answers", len(methods) * len(tasks), is_transient=True) as update:

        def on_run(run: Run) -> None:
            update(advance=1, description=f"answers ({run.method})")

        return compare(methods, tasks, params, on_run)
