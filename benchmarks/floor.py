"""How near the target's step is to its floor: the time to read its weights once from memory.

    .venv/bin/python benchmarks/floor.py --out RESULT.json

Floor = bytes of the weights that a step reads ÷ read bandwidth, which is measured in the same run,
between the rounds of steps: a buffer much larger than any cache, summed by all threads, by PyTorch
and by NumPy; the better of the two counts. `floor` is by the best sweep, and `floor_of_the_median`
by the median one. Last-level caches of servers hold a part of a small model, so a step can be
faster than its floor. Bytes are of all parameters but an input embedding that is not the output
layer, too; int8 counts one byte each, without scales. Ratios of rows are medians of ratios within
a round. Under five minutes on two quiet cores.
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

RUNS = ("native:int8", "openvino:int8", "compiled:bfloat16")
ROWS = (1, 8, 16)
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
    for round_ in range(arguments.repeats + 1):
        memory.sweep()
        for rows in ROWS:
            for run in runs:
                run.step(rows)
                if round_ == 0:  # sizes seen for the first time
                    run.wall[rows].clear()
    loads.append(load_average())
    bandwidth = memory.report()
    content = {
        "bandwidth": bandwidth,
        "runs": [against_floor(run, bandwidth) for run in runs],
        "limits": LIMITS,
        "context": arguments.context,
        "repeats": arguments.repeats,
        "load_average": loads,
        "environment": describe_environment(runs[0].target),
    }
    write_result(arguments.out, content)
    for run in content["runs"]:
        note(f"{run['run']}: {run['ratios']}")
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


def against_floor(run: Timed, bandwidth: dict[str, Any]) -> dict[str, Any]:
    size = BYTES[run.target.number_format] * num_weights(run.target)
    floor = 1e3 * size / bandwidth["best_bytes_per_second"]
    plain = median(run.wall[1])
    ratios = {
        "plain_over_floor": plain / floor,
        **{f"rows_{rows}_over_1": paired(run.wall[rows], run.wall[1]) for rows in ROWS[1:]},
    }
    return {
        "run": run.spec,
        "weight_bytes": size,
        "floor_milliseconds": floor,
        "floor_of_the_median_milliseconds": 1e3 * size / bandwidth["median_bytes_per_second"],
        "milliseconds": {rows: round(median(times), 3) for rows, times in run.wall.items()},
        "lowest_milliseconds": {rows: round(min(times), 3) for rows, times in run.wall.items()},
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "is_within": {name: ratios[name] <= limit for name, limit in LIMITS.items()},
        "times": {rows: [round(one, 3) for one in times] for rows, times in run.wall.items()},
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
