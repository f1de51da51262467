"""Time of one step against its rows, for each runtime and number format, interleaved.

    .venv/bin/python benchmarks/runtime_steps.py --out RESULT.json

A step is the target's share of a decode step: a forward of T rows behind `--context` committed
tokens, and the logits of one row. Everything is timed in turn, so that a busy moment hits all
alike; medians, in milliseconds. `cpu` is processor time of all threads instead: twice the price
of a row on two threads, but steadier on a machine that others use, too. With `--competitors N` so
many processes compute for themselves meanwhile, as on a machine that is busy.
"""

from __future__ import annotations

import argparse
import json
import sys
from multiprocessing import Process
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep

import torch

from entmtp.target import KVCache, TargetModel
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target
from entmtp.target.masks import causal_among

ROWS = (1, 2, 4, 8, 16, 32, 64)
RUNS = (
    *("eager:float32", "eager:bfloat16", "compiled:bfloat16", "compiled:int8"),
    *("openvino:float32", "openvino:bfloat16", "openvino:int8"),
    *("native:bfloat16", "native:int8"),
)
PAUSE_SECONDS = 0.005
"""Before each step: threads of another runtime wait busily for a while."""


class Timed:
    """One target with a filled cache, and what its steps took."""

    def __init__(self, spec: str, model: str, context: int, rows: list[int]) -> None:
        runtime, number_format = spec.split(":")
        note(f"loading {model} on {spec}")
        self.spec = spec
        self.target: TargetModel = load_target(
            model, number_format, progress=note, runtime=runtime, self_check=False
        )
        self.target.warm_up(rows)
        self.cache: KVCache = self.target.new_cache(1, context + max(rows))
        for _ in self.target.prefill(self._ids(context), self.cache):
            pass
        self.wall: dict[int, list[float]] = {count: [] for count in rows}
        self.cpu: dict[int, list[float]] = {count: [] for count in rows}

    def step(self, rows: int) -> None:
        sleep(PAUSE_SECONDS)
        with self.target.at_work():
            self.step_at_once(rows)

    def step_at_once(self, rows: int) -> None:
        """Without a pause, for a caller that is `at_work`."""
        ids, device = self._ids(rows), self.target.device
        positions = self.cache.length + torch.arange(rows)[None]
        among = causal_among(1, rows, device)
        wall, cpu = perf_counter(), process_time()
        hidden = self.target.forward(ids, positions, among, self.cache)
        self.target.logits(hidden[:, 0])
        self.wall[rows].append(1e3 * (perf_counter() - wall))
        self.cpu[rows].append(1e3 * (process_time() - cpu))

    def report(self) -> dict[str, object]:
        return {
            "run": self.spec,
            "wall_ms": {rows: round(median(times), 2) for rows, times in self.wall.items()},
            "cpu_ms": {rows: round(median(times), 2) for rows, times in self.cpu.items()},
            "lowest_wall_ms": {rows: round(min(times), 2) for rows, times in self.wall.items()},
        }

    def _ids(self, count: int) -> torch.Tensor:
        return torch.randint(self.target.vocab_size, (1, count))


@torch.inference_mode()
def main() -> None:
    arguments = parse()
    torch.manual_seed(0)
    competitors = [Process(target=compete, daemon=True) for _ in range(arguments.competitors)]
    for one in competitors:
        one.start()
    runs = [Timed(s, arguments.model, arguments.context, arguments.rows) for s in arguments.runs]
    loads = [load_average()]
    for round_ in range(arguments.repeats + 1):
        for rows in arguments.rows:
            for run in runs:
                run.step(rows)
                if round_ == 0:  # sizes seen for the first time
                    run.wall[rows].clear()
                    run.cpu[rows].clear()
    loads.append(load_average())
    for one in competitors:
        one.kill()
    report = {
        "environment": describe_environment(runs[0].target),
        "context": arguments.context,
        "repeats": arguments.repeats,
        "competitors": arguments.competitors,
        "load_average": loads,
        "steps": [run.report() for run in runs],
    }
    text = json.dumps(report, indent=2)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)


def compete() -> None:
    """Keep a core busy until somebody ends it."""
    while True:
        sum(range(100_000))


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runs", nargs="+", default=list(RUNS), metavar="RUNTIME:FORMAT")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--context", type=int, default=256, help="committed tokens")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--competitors", type=int, default=0, help="busy processes beside it")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
