"""One run on a GPU: is it right, is it fast, does it stay so? Writes one JSON file.

    python scripts/gpu_check.py --model FOLDER --out RESULT.json

`--model` is the converted embedded model's folder in the cache, or any checkpoint; without it, a
tiny model of random weights stands in, so that nothing is ever downloaded. Sections:

    law          ids of trees are those of plain decoding, float32, temperature 0 and above
    sync         a step waits for the device once, and copies to the host once
    attention    kernels against each other: time, and distance from float32
    times        plain and static trees: eager against graphs, in bfloat16 and float16
    shapes       t(nodes, depth) for shapes of 1B and 7B Llamas of random weights: timing only
    steadiness   no slow step, no growing memory, nothing captured, while the tree changes each step

It takes under ten minutes: a section that would begin later than `--budget` allows is left out, by
name. `--device cpu --quick` runs all of it in tiny sizes, for tests: its figures mean nothing.
Exit code 1 if law, sync or steadiness fail.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import torch
from gpu_sections import attention, law, shapes, steadiness, sync, times
from gpu_sections.setup import Setup, note

from entmtp.target.environment import describe_environment

SECTIONS = {
    "law": law.check,
    "sync": sync.check,
    "steadiness": steadiness.check,
    "attention": attention.measure,
    "times": times.measure,
    "shapes": shapes.measure,
}
"""In the order in which they run: what must be right comes first."""
_LAST_START = 0.8
"""Share of the budget behind which no section begins."""


def main() -> int:
    arguments = parse()
    started = perf_counter()
    setup = Setup(arguments.model, torch.device(arguments.device), arguments.quick)
    report: dict[str, Any] = {
        "environment": describe_environment(setup.target("float32")),
        "weights": setup.weights,
        "quick": arguments.quick,
        "sections": {},
    }
    for name in arguments.only:
        spent = perf_counter() - started
        if spent > _LAST_START * arguments.budget:
            report["sections"][name] = {"left_out": f"{spent:.0f} s were spent"}
            continue
        note(f"{name} …")
        report["sections"][name] = run(name, setup, arguments.budget - spent)
        report["seconds"] = round(perf_counter() - started, 1)
        # Written each time: what was found must not be lost with what comes after.
        arguments.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    failed = [n for n, found in report["sections"].items() if found.get("passed") is False]
    print(json.dumps({"out": str(arguments.out), "failed": failed}))
    return 1 if failed else 0


def run(name: str, setup: Setup, seconds_left: float) -> dict[str, Any]:
    """A section's findings; an error of its own ends no other."""
    started = perf_counter()
    try:
        with torch.inference_mode():
            found = SECTIONS[name](setup, seconds_left)
    except Exception as error:  # the report is to tell of it, whatever it is
        traceback.print_exc()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        found = {"passed": False, "error": reason}
    return {**found, "seconds": round(perf_counter() - started, 1)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a checkpoint folder; random weights without it")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; figures mean nothing")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--budget", type=float, default=540, help="seconds")
    parser.add_argument("--out", type=Path, default=Path("gpu_check.json"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
