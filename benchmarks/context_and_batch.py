"""Time of a step against the context behind it, and against the sequences in it; a picture.

    .venv/bin/python benchmarks/context_and_batch.py --out RESULT.json --picture RESULT.png

A step is the target's share: a forward of one row or of a tree (the heads' own of 16 nodes) for
every sequence, logits of one row each, and `keep` of as many rows as a tree brings on average. In
each place all runs and both kinds of rows take turns; medians. Contexts are taken with one
sequence, batches at `--batch-context` tokens each. `cache_bytes` is what the run's cache holds
there, `resident_bytes` the whole process with every run in it. Random ids: times do not depend
on them. About 10 minutes with three runs on two cores. `--draw RESULT.json` draws a result without
measuring.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import torch
from kept import note, write_result
from memory import resident_bytes

from entmtp.decode import node_positions, verify
from entmtp.heads import default_tree, locate_heads
from entmtp.target import KVCache, TargetModel
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target
from entmtp.trees import ROOT, Tree, tree_buffers

RUNS = ("native:int8", "openvino:int8", "eager:bfloat16")
CONTEXTS = (512, 1024, 2048, 4096, 8000)
BATCHES = (1, 2, 4, 8, 16)
NUM_KEPT = 2
"""Rows that a tree's step commits, about its mean acceptance length."""


class Kind(NamedTuple):
    """Rows of a step: what they are called, and the tree that they are."""

    name: str
    tree: Tree

    @property
    def num_kept(self) -> int:
        return min(NUM_KEPT, self.tree.num_nodes)


class Measured:
    """One runtime and format, with a cache that grows from place to place."""

    def __init__(self, spec: str, model: str, kinds: list[Kind]) -> None:
        runtime, number_format = spec.split(":")
        note(f"loading {model} on {spec}")
        before = resident_bytes()
        self.spec = spec
        self.target: TargetModel = load_target(
            model, number_format, progress=note, runtime=runtime, self_check=False
        )
        self.target.warm_up({kind.tree.num_nodes for kind in kinds})
        after = resident_bytes()
        self.resident = None if before is None or after is None else after - before
        self.cache: KVCache = self._new_cache(1, 1)

    def fill(self, context: int) -> None:
        """Let the only sequence grow to `context` tokens."""
        ids = torch.randint(self.target.vocab_size, (1, context - self.cache.length))
        for _ in self.target.prefill(ids, self.cache):
            pass

    def multiply(self, batch: int, context: int) -> None:
        """A new cache of equal sequences."""
        self.cache = self._new_cache(batch, context + NUM_KEPT)
        whole, self.cache = self.cache, self.cache.view(0, 1)
        self.fill(context)
        for row in range(1, batch):
            whole.copy_row(0, row)
        self.cache = whole

    def drop(self) -> None:
        self.cache = self._new_cache(1, 1)

    def step(self, kind: Kind) -> float:
        """Milliseconds of one step; the cache is then as it was."""
        lengths, batch = self.cache.lengths, self.cache.batch_size
        buffers = tree_buffers((kind.tree,) * batch, self.target.device)
        ids = torch.randint(self.target.vocab_size, (batch, kind.tree.num_nodes))
        slots = torch.arange(kind.num_kept).expand(batch, -1)
        started = perf_counter()
        positions = node_positions(self.cache.lengths, buffers)
        hidden = verify(self.target, self.cache, ids, positions, buffers)
        self.target.logits(hidden[:, 0])
        self.cache.keep(slots, [kind.num_kept] * batch)
        seconds = perf_counter() - started
        for row, length in enumerate(lengths):
            self.cache.truncate(row, length)
        return 1e3 * seconds

    def _new_cache(self, batch: int, capacity: int) -> KVCache:
        cache = self.target.new_cache(batch, capacity)
        assert isinstance(cache, KVCache), "a target that verifies trees"
        return cache


@torch.inference_mode()
def main() -> int:
    arguments = parse()
    if arguments.draw is not None:
        draw(json.loads(arguments.draw.read_text(encoding="utf-8")), arguments.picture)
        return 0
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    kinds = [Kind("plain", ROOT), Kind("tree", default_tree(locate_heads("hydra")))]
    runs = [Measured(spec, arguments.model, kinds) for spec in arguments.runs]
    loads = [load_average()]
    longest = runs[0].target.max_length - max(kind.tree.num_nodes for kind in kinds)
    contexts = [n for n in arguments.contexts if n <= longest]
    by_context = [at_context(runs, kinds, n, arguments.repeats) for n in contexts]
    by_batch = [
        at_batch(runs, kinds, n, arguments.batch_context, arguments.repeats)
        for n in arguments.batches
    ]
    content = {
        "contexts": by_context,
        "batches": by_batch,
        "throughput_over_first_batch": throughput(by_batch),
        "resident_bytes_of_runs": {run.spec: run.resident for run in runs},
        "num_nodes": {kind.name: kind.tree.num_nodes for kind in kinds},
        "batch_context": arguments.batch_context,
        "repeats": arguments.repeats,
        "load_average": [*loads, load_average()],
        "environment": describe_environment(runs[0].target),
    }
    write_result(arguments.out, content)
    if arguments.picture is not None:
        draw(content, arguments.picture)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), metavar="RUNTIME:FORMAT")
    parser.add_argument("--contexts", nargs="+", type=int, default=list(CONTEXTS))
    parser.add_argument("--batches", nargs="+", type=int, default=list(BATCHES))
    parser.add_argument("--batch-context", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, help="a PNG; needs matplotlib")
    parser.add_argument("--draw", type=Path, metavar="RESULT.json")
    arguments = parser.parse_args()
    if arguments.out is None and (arguments.draw is None or arguments.picture is None):
        parser.error("give --out, or --draw and --picture")
    return arguments


def at_context(
    runs: list[Measured], kinds: list[Kind], context: int, repeats: int
) -> dict[str, Any]:
    note(f"context {context}")
    for run in runs:
        run.fill(context)
    return {"context": context, **place(runs, kinds, repeats)}


def at_batch(
    runs: list[Measured], kinds: list[Kind], batch: int, context: int, repeats: int
) -> dict[str, Any]:
    note(f"batch {batch}")
    for run in runs:
        run.multiply(batch, context)
    measured = place(runs, kinds, repeats)
    for run in runs:
        run.drop()
    return {"batch": batch, **measured}


def place(runs: list[Measured], kinds: list[Kind], repeats: int) -> dict[str, Any]:
    """Steps of all runs and kinds in turn; the first of each, which may grow, does not count."""
    times: dict[str, dict[str, list[float]]] = {
        run.spec: {kind.name: [] for kind in kinds} for run in runs
    }
    for round_ in range(repeats + 1):
        for kind in kinds:
            for run in runs:
                milliseconds = run.step(kind)
                if round_ > 0:
                    times[run.spec][kind.name].append(milliseconds)
    return {
        "milliseconds": {
            spec: {name: round(median(values), 3) for name, values in by_kind.items()}
            for spec, by_kind in times.items()
        },
        "cache_bytes": {run.spec: run.cache.num_bytes for run in runs},
        "resident_bytes": resident_bytes(),
    }


def throughput(batches: list[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Steps of sequences a second in each batch, over those of the first."""
    first = batches[0]
    ratios: dict[str, dict[str, list[float]]] = {}
    for spec, kinds in first["milliseconds"].items():
        ratios[spec] = {}
        for kind in kinds:
            rates = [row["batch"] / row["milliseconds"][spec][kind] for row in batches]
            ratios[spec][kind] = [round(rate / rates[0], 3) for rate in rates]
    return ratios


def draw(content: dict[str, Any], picture: Path) -> None:
    """Step time against context, and steps of sequences a second against batch."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for color, spec in enumerate(content["contexts"][0]["milliseconds"]):
        for kind, style in (("plain", "o-"), ("tree", "s--")):
            label = f"{spec.replace(':', ', ')}, {content['num_nodes'][kind]} rows"
            for axes, rows, key in ((left, "contexts", "context"), (right, "batches", "batch")):
                x = [row[key] for row in content[rows]]
                y = [row["milliseconds"][spec][kind] for row in content[rows]]
                if axes is right:
                    y = [1e3 * count / time for count, time in zip(x, y, strict=True)]
                axes.plot(x, y, style, color=f"C{color}", label=label, markersize=4)
    left.set(xlabel="committed tokens", ylabel="step (ms)", ylim=(0, None), title="One sequence")
    title = f"{content['batch_context']} committed tokens each"
    right.set(xlabel="sequences", ylabel="steps of a sequence per second", title=title)
    right.set(ylim=(0, None))
    left.legend(fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=130, format="png")


if __name__ == "__main__":
    sys.exit(main())
