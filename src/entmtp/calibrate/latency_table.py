"""A table of measured step times, on disk and as a smooth monotone model of all sizes.

Knows: times by tree and context, what a change of rows costs, and what looking does. Does not know:
models, who measured.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from entmtp.calibrate.files import BROKEN, broken, read_json, write_json
from entmtp.calibrate.monotone import rising
from entmtp.calibrate.origin import Origin
from entmtp.data.strict_json import count, number
from entmtp.errors import BadInput, TreeError
from entmtp.scheduler.times import AtContext, OfBatch, StepTimes
from entmtp.trees import Tree, chain

SCHEMA_VERSION = 3
_MACHINE = ("processor", "num_cpus", "num_threads")
"""What times hang on, of the machine's description."""


class Spread(NamedTuple):
    """Quartiles of measured seconds."""

    low: float
    median: float
    high: float


@dataclass(frozen=True)
class TimedTree:
    """Steps with one tree at one context, on real text: each accepts what it accepts.

    All of them follow steps of as many rows.
    """

    tree: Tree
    context: float
    """Committed tokens, on average"""
    num_samples: int
    num_accepted: float
    """Drafts accepted in a step, on average"""
    draft: Spread
    """The heads: observing and proposing"""
    verify: Spread
    """The target: forward over the tree, and logits of visited nodes"""
    host: Spread
    """Everything else; on a GPU it is in `verify`"""


class TimedSwitch(NamedTuple):
    """Steps at one context that follow a step of another number of rows."""

    context: float
    """Committed tokens, on average"""
    num_samples: int
    seconds: Spread
    """More than steps with the same tree took right behind"""


class Looks(NamedTuple):
    """What a step takes longer on the host for a policy that looks at something."""

    root_seconds: float = 0.0
    """At the probability and the entropy of its root"""
    read_seconds: float = 0.0
    """At its draft, of which it then verifies a part"""


@dataclass(frozen=True)
class LatencyTable:
    """Times of the steps of one target, heads, runtime and batch size on one machine."""

    origin: Origin
    machine: Mapping[str, Any]
    """As `target.environment` describes it"""
    batch_size: int
    accepted_seconds: float
    """What a step takes longer for each draft that it accepts: its logits, its cache row, its
    state for the heads. Part of the times as measured, on average"""
    entries: tuple[TimedTree, ...]
    """At each context the same trees: the root alone, chains 1 … K, and others"""
    switches: tuple[TimedSwitch, ...]
    """Of all trees together, at each context"""
    looks: Looks
    """At whatever context"""

    def times(self, context: float) -> StepTimes:
        """Times at a context length: between measured ones linear, outside as at the nearest."""
        trees = list(dict.fromkeys(entry.tree for entry in self.entries))
        each = {tree: _parts(self._of(tree), context) for tree in trees}
        root = each[min(trees, key=lambda tree: tree.num_nodes)]
        chains = [each[chain(d)] for d in range(1, max(tree.depth for tree in trees) + 1)]
        # The heads observe what was committed in every step, whatever is drafted.
        draft = _rising([0.0, *(max(parts.draft - root.draft, 0.0) for parts in chains)])
        rows = sorted({tree.num_nodes for tree in trees})
        sized = [[tree for tree in trees if tree.num_nodes == size] for size in rows]
        beside = {tree: max(parts.host - root.host, 0.0) for tree, parts in each.items()}
        verify = [_mean(each[t].verify + beside[t] for t in ts) for ts in sized]
        width = [_mean(each[t].draft - root.draft - draft[t.depth] for t in ts) for ts in sized]
        return StepTimes(
            tuple(rows),
            tuple(_rising(verify)),
            tuple(draft),
            root.host + root.draft,
            tuple(_rising([max(seconds, 0.0) for seconds in width])),
            self._switch_seconds(context),
            max(self.looks.root_seconds, 0.0),
            max(self.looks.read_seconds, 0.0),
        )

    def _switch_seconds(self, context: float) -> float:
        switches = sorted(self.switches)
        medians = [max(one.seconds.median, 0.0) for one in switches]
        return float(np.interp(context, [one.context for one in switches], medians))

    @property
    def contexts(self) -> list[float]:
        """Those that were measured, ascending."""
        return sorted(entry.context for entry in self.entries if entry.tree.depth == 0)

    def _of(self, tree: Tree) -> list[TimedTree]:
        found = [entry for entry in self.entries if entry.tree == tree]
        return sorted(found, key=lambda entry: entry.context)


def times_at(tables: Sequence[LatencyTable], context: float) -> AtContext:
    """Times at a context length of every batch size.

    Args:
        tables: ascending by batch size, from one sequence alone.
    """
    alone, *others = tables
    batches = tuple(OfBatch(table.batch_size, table.times(context)) for table in others)
    return AtContext(round(context), alone.times(context), batches)


def all_times(tables: Sequence[LatencyTable]) -> tuple[AtContext, ...]:
    """Times at each context that one sequence was measured at: what policies look up."""
    return tuple(times_at(tables, context) for context in tables[0].contexts)


class _Parts(NamedTuple):
    draft: float
    verify: float
    host: float


def _parts(entries: Sequence[TimedTree], context: float) -> _Parts:
    places = [entry.context for entry in entries]
    return _Parts(
        *(
            float(np.interp(context, places, [getattr(entry, name).median for entry in entries]))
            for name in _Parts._fields
        )
    )


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _rising(values: Sequence[float]) -> list[float]:
    return rising(values, [1.0] * len(values))


def write_latency(path: Path, table: LatencyTable) -> None:
    """Write it, whole or not at all."""
    entries = [asdict(entry) | {"tree": entry.tree.paths[1:]} for entry in table.entries]
    content = {
        "schema_version": SCHEMA_VERSION,
        "origin": table.origin._asdict(),
        "machine": dict(table.machine),
        "batch_size": table.batch_size,
        "accepted_seconds": table.accepted_seconds,
        "entries": entries,
        "switches": [one._asdict() for one in table.switches],
        "looks": table.looks._asdict(),
    }
    write_json(path, content)


def read_latency(
    path: Path, wanted: Origin | None = None, machine: Mapping[str, Any] | None = None
) -> LatencyTable:
    """Read a table.

    Args:
        wanted: what is to be run; a table of anything else is refused.
        machine: the description of this one; another one's times are used with a warning.

    Raises:
        ArtefactError: it is missing, broken, of another version, or of something else.
    """
    content = read_json(path, SCHEMA_VERSION)
    try:
        table = LatencyTable(
            origin=Origin(**content["origin"]),
            machine=dict(content["machine"]),
            batch_size=count(content["batch_size"], 1),
            accepted_seconds=number(content["accepted_seconds"], None),
            entries=tuple(_entry(fields) for fields in content["entries"]),
            switches=tuple(_switch(fields) for fields in content["switches"]),
            looks=Looks(**{name: number(content["looks"][name], None) for name in Looks._fields}),
        )
        table.times(0)
    except (*BROKEN, TreeError, BadInput) as error:
        raise broken(path, error) from error
    if wanted is not None:
        table.origin.demand(path, wanted)
    if machine is not None:
        _compare(path, table.machine, machine)
    return table


def _switch(fields: Mapping[str, Any]) -> TimedSwitch:
    context, num_samples = number(fields["context"]), count(fields["num_samples"])
    return TimedSwitch(context, num_samples, _spread(fields["seconds"], None))


def _spread(seconds: Sequence[Any], least: float | None = 0.0) -> Spread:
    """Raises ValueError: they are no quartiles, or lie below `least`."""
    spread = Spread(*(number(each, least) for each in seconds))
    if list(spread) != sorted(spread):
        raise ValueError(f"{list(spread)} are no quartiles")
    return spread


def _entry(fields: Mapping[str, Any]) -> TimedTree:
    spreads = {name: _spread(fields[name]) for name in _Parts._fields}
    return TimedTree(
        tree=Tree.from_paths(fields["tree"]),
        context=number(fields["context"]),
        num_samples=count(fields["num_samples"]),
        num_accepted=number(fields["num_accepted"]),
        **spreads,
    )


def _compare(path: Path, found: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    changes = [
        f"{name.replace('_', ' ')} {found.get(name)}, not {own.get(name)}"
        for name in _MACHINE
        if found.get(name) != own.get(name)
    ]
    if changes:
        warnings.warn(
            f"{path} holds the times of another machine ({'; '.join(changes)}); measure them here",
            stacklevel=3,
        )
