"""The banks that ship with heads: for text of all kinds, and for each kind.

    .venv/bin/python training/shipped_banks.py HELD_OUT.jsonl --heads hydra --out FOLDER

All banks have the same step times, which are measured for the first one; so they differ by what
their prompts say, and by nothing else. The first one's finalists answer prompts for longer. With
`--of bfloat16` or `--of openvino` there is one bank, for all kinds. Ended early, it goes on with
the bank that it was at; banks that are there are kept. Be alone on the machine: ten to fifteen
minutes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from entmtp.bench import load_workload
from entmtp.calibrate.latency_table import LatencyTable, read_latency, write_latency
from entmtp.calibrate.live import LiveConfig
from entmtp.calibrate.origin import Origin
from entmtp.calibrate.pipeline import BATCH_SIZE, CalibrationConfig, calibrate
from entmtp.calibrate.report import check_place, write_report
from entmtp.calibrate.study import study
from entmtp.calibrate.timing import TimingConfig
from entmtp.data import Prompt
from entmtp.engine.shipped_bank import BANK_NAMES, KIND_NAME
from entmtp.errors import EntmtpError
from entmtp.heads import load_heads
from entmtp.target.load import load_target

KINDS = {"code": ("code",), "maths": ("math",), "chat": ("chat", "instruction")}
"""What a bank is named, and the kinds of prompts that it is made from"""
MOST_OF_A_KIND = 64
RUNS = {
    "default": ("auto", "auto"),
    "bfloat16": ("native", "bfloat16"),
    "openvino": ("openvino", "int8"),
}
"""Runtimes and number formats that have a bank, by what it is named"""


def main(arguments: argparse.Namespace) -> None:
    file = str(arguments.prompts)
    prompts = load_workload([file])
    runtime, number_format = RUNS[arguments.of]
    target = load_target("smollm2-135m", number_format, progress=note, runtime=runtime)
    heads = load_heads(arguments.heads, target)
    arguments.out.mkdir(parents=True, exist_ok=True)
    origin = Origin.of(target, heads)
    places = [arguments.out / f"step-times-{size}.json" for size in (1, BATCH_SIZE)]
    tables: Sequence[LatencyTable] = ()
    if all(place.is_file() for place in places):
        tables = [read_latency(place, origin) for place in places]
    is_default = arguments.of == "default"
    for kind in (None, *KINDS) if is_default else (None,):
        name = BANK_NAMES[0] if is_default else KIND_NAME.format(arguments.of)
        out = arguments.out / (name if kind is None else KIND_NAME.format(kind))
        if out.is_file():
            continue
        some = load_workload([file], arguments.limit) if kind is None else of_kind(prompts, kind)
        live = arguments.live_seconds if kind is None else arguments.kind_live_seconds
        note(f"{out.name}: {len(some)} prompts")
        config = CalibrationConfig(
            timing=TimingConfig(seconds=arguments.timing_seconds), live=LiveConfig(live)
        )
        made = calibrate(target, heads, some, out, config, tables=tables)
        tables = made.tables
        for place, table in zip(places, tables, strict=True):
            write_latency(place, table)
        write_report(study(made), check_place(out.with_name(f"report-{out.stem}.html"), out))
        note(f"{out.name}: {made.bank.timing.recommended} {made.seconds}")


def of_kind(prompts: tuple[Prompt, ...], kind: str) -> list[Prompt]:
    """Of more than `MOST_OF_A_KIND` so many, at even distances."""
    found = [prompt for prompt in prompts if prompt.kind in KINDS[kind]]
    count = min(len(found), MOST_OF_A_KIND)
    return [found[place * len(found) // count] for place in range(count)]


def note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("prompts", type=Path, metavar="HELD_OUT.jsonl")
    parser.add_argument("--heads", default="hydra", choices=("medusa", "hydra"))
    parser.add_argument("--of", default="default", choices=RUNS)
    parser.add_argument("--limit", type=int, default=96, help="prompts of the bank for all kinds")
    parser.add_argument("--timing-seconds", type=float, default=60)
    parser.add_argument("--live-seconds", type=float, default=170, help="of the bank for all kinds")
    parser.add_argument("--kind-live-seconds", type=float, default=45, help="of each other one")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    arguments = parser.parse_args()
    try:
        main(arguments)
    except EntmtpError as error:
        parser.error(str(error))
