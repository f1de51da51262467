"""How near the target's step is to its floor: the time to read its weights once from memory.

    .venv/bin/python benchmarks/floor.py --out RESULT.json

Floor = bytes of the weights that a step reads ÷ read bandwidth, which is measured in the same run,
before each visit to a number of rows: a buffer much larger than any cache, summed by all threads,
by PyTorch and by NumPy; the better of the two counts. `floor` is by the best sweep, and
`floor_of_the_median` by the median one. Bytes are of all parameters but an input embedding that is
not the output layer, too; int8 counts one byte each, without scales.

A visit is a few steps on end. The first one finds nothing in the caches, not even its own program:
`behind a sweep`. The others are as in decoding, one behind the other: `running`; what the sweep
drove out of a server's last-level cache is then partly back, so a small model's step can be faster
than its floor. Ratios of rows are medians of ratios within a round. Under five minutes on two quiet
cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from kept import note, write_result
from runtime_steps import Timed

from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment, load_average

RUNS = ("native:int8", "native:bfloat16", "openvino:int8", "compiled:bfloat16")
ROWS = (1, 8, 16)
NUM_RUNNING = 4
"""Steps of a visit behind its first; of these the first does not count"""
LIMITS = {"plain_over_floor": 1.25, "rows_8_over_1": 1.2, "rows_16_over_1": 1.35}
"""What issue 4 asks for."""
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


class Memory:
    """A buffer to read, and how fast that went."""

    def __init__(self, num_bytes: int, num_threads: int) -> None:
        self._numbers = torch.ones(num_bytes // 4)
        self._parts = np.array_split(self._numbers.numpy(), num_threads)
        self._pool = ThreadPoolExecutor(num_threads)
        self.sweeps: dict[str, list[float]] = {"torch": [], "numpy": []}

    def sweep(self) -> None:
        """Read all of it, in both ways; bytes per second."""
        num_bytes = 4 * self._numbers.numel()
        started = perf_counter()
        self._numbers.sum()
        between = perf_counter()
        list(self._pool.map(np.sum, self._parts))
        ended = perf_counter()
        self.sweeps["torch"].append(num_bytes / (between - started))
        self.sweeps["numpy"].append(num_bytes / (ended - between))

    def report(self) -> dict[str, Any]:
        """The best way's sweeps; the first, which may meet unmapped memory, does not count."""
        counted = {way: rates[1:] for way, rates in self.sweeps.items()}
        way = max(counted, key=lambda name: median(counted[name]))
        return {
            "way": way,
            "best_bytes_per_second": round(max(counted[way])),
            "median_bytes_per_second": round(median(counted[way])),
            "buffer_bytes": 4 * self._numbers.numel(),
            "all_gigabytes_per_second": {
                name: [round(rate / 1e9, 2) for rate in rates] for name, rates in counted.items()
            },
        }


@torch.inference_mode()
def main() -> int:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    memory = Memory(arguments.buffer_mebibytes << 20, arguments.threads)
    runs = [Timed(s, arguments.model, arguments.context, list(ROWS)) for s in arguments.runs]
    loads = [load_average()]
    visits: dict[str, dict[int, list[list[float]]]] = {
        run.spec: {rows: [] for rows in ROWS} for run in runs
    }
    for round_ in range(arguments.repeats + 1):
        for rows in ROWS:
            for run in runs:
                memory.sweep()
                steps = visit(run, rows)
                if round_ > 0:  # sizes are seen for the first time in it
                    visits[run.spec][rows].append(steps)
    loads.append(load_average())
    bandwidth = memory.report()
    content = {
        "bandwidth": bandwidth,
        "runs": [against_floor(run, visits[run.spec], bandwidth) for run in runs],
        "limits": LIMITS,
        "context": arguments.context,
        "repeats": arguments.repeats,
        "load_average": loads,
        "environment": describe_environment(runs[0].target),
    }
    write_result(arguments.out, content)
    for run in content["runs"]:
        for name in ("running", "behind_a_sweep"):
            note(f"{run['run']}, {name}: {run[name]['ratios']}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), metavar="RUNTIME:FORMAT")
    parser.add_argument("--context", type=int, default=256, help="committed tokens")
    parser.add_argument("--repeats", type=int, default=31)
    parser.add_argument("--buffer-mebibytes", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def visit(run: Timed, rows: int) -> list[float]:
    """Milliseconds of a few steps on end."""
    run.wall[rows].clear()
    with run.target.at_work():
        for _ in range(1 + NUM_RUNNING):
            run.step_at_once(rows)
    return list(run.wall[rows])


def against_floor(
    run: Timed, visits: dict[int, list[list[float]]], bandwidth: dict[str, Any]
) -> dict[str, Any]:
    size = BYTES[run.target.number_format] * num_weights(run.target)
    floor = 1e3 * size / bandwidth["best_bytes_per_second"]
    first = {rows: [steps[0] for steps in each] for rows, each in visits.items()}
    running = {rows: [median(steps[2:]) for steps in each] for rows, each in visits.items()}
    return {
        "run": run.spec,
        "weight_bytes": size,
        "floor_milliseconds": floor,
        "floor_of_the_median_milliseconds": 1e3 * size / bandwidth["median_bytes_per_second"],
        "running": in_figures(running, floor),
        "behind_a_sweep": in_figures(first, floor),
    }


def in_figures(times: dict[int, list[float]], floor: float) -> dict[str, Any]:
    ratios = {
        "plain_over_floor": median(times[1]) / floor,
        **{f"rows_{rows}_over_1": paired(times[rows], times[1]) for rows in ROWS[1:]},
    }
    return {
        "milliseconds": {rows: round(median(each), 3) for rows, each in times.items()},
        "lowest_milliseconds": {rows: round(min(each), 3) for rows, each in times.items()},
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "is_within": {name: ratios[name] <= limit for name, limit in LIMITS.items()},
        "times": {rows: [round(one, 3) for one in each] for rows, each in times.items()},
    }


def num_weights(target: TargetModel) -> int:
    """Parameters that a step reads: of an input embedding it reads one row a token."""
    parameters = {id(p): p for p in target.transformers_model.parameters()}
    if target.embedding_weight.data_ptr() != target.output_weight.data_ptr():
        parameters.pop(id(target.embedding_weight), None)
    return sum(p.numel() for p in parameters.values())


def paired(times: Sequence[float], base: Sequence[float]) -> float:
    return median(a / b for a, b in zip(times, base, strict=True))


if __name__ == "__main__":
    sys.exit(main())
