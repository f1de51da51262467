"""Write the figures of `results/` into the README and the docs, between their markers.

.venv/bin/python benchmarks/readme.py           (a test compares, so that they stay true)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from bank_tables import of_calibrations, of_decisions, of_kinds, of_random_heads
from remedy_tables import (
    of_openvino,
    of_priors,
    of_promises,
    of_remedies,
    of_signals,
    of_sizes,
)
from result_files import ROOT, read
from runtime_tables import of_context_and_batch, of_floor, of_qwen, of_runtimes
from speed_tables import (
    beside_the_paper,
    bfloat16_in_short,
    figures,
    of_methods,
    of_milliseconds,
    speed_table,
)

BANKS = ROOT / "src" / "entmtp" / "heads" / "packaged" / "hydra"
REMEDIES = "remedies.json"


def main() -> None:
    for page in pages():
        path = ROOT / page
        path.write_text(filled(page, path.read_text(encoding="utf-8")), encoding="utf-8")


def pages() -> dict[str, dict[str, Callable[[], str]]]:
    """What stands between which markers of which page."""
    return {
        "README.md": {
            "table": lambda: speed_table("speed-int8.json") + bfloat16_in_short(),
            "bfloat16": lambda: speed_table("speed-bfloat16-native.json"),
            "figures": figures,
        },
        "docs/calibrate.md": {"calibrations": of_calibrations},
        "docs/runtimes.md": {
            "steps": of_runtimes,
            "floor": of_floor,
            "milliseconds": of_milliseconds,
            "company": of_context_and_batch,
            "qwen": of_qwen,
        },
        "docs/scheduler.md": {
            "methods": lambda: of_methods("speed-int8.json"),
            "methods in bfloat16": lambda: of_methods("speed-bfloat16-native.json"),
            "sizes": lambda: of_sizes(bank("bank.json")),
            "remedies": lambda: of_remedies(read(REMEDIES)),
            "signals": lambda: of_signals(read(REMEDIES)),
            "priors": lambda: of_priors(read(REMEDIES)),
            "promises": lambda: of_promises(read(REMEDIES)),
            "openvino": lambda: of_openvino(
                read("speed-int8-openvino.json"), read("bank-openvino.json")
            ),
            "paper": beside_the_paper,
            "kinds": of_kinds,
            "random": of_random_heads,
            "decisions": of_decisions,
        },
    }


def filled(page: str, text: str) -> str:
    """A page's text with today's figures."""
    for marker, block in pages()[page].items():
        start, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
        before, rest = text.split(start)
        after = rest.split(end)[1]
        text = f"{before}{start}{block()}{end}{after}"
    return text


def bank(name: str) -> dict[str, Any]:
    """A shipped bank of Hydra++ heads."""
    content: dict[str, Any] = json.loads((BANKS / name).read_text(encoding="utf-8"))
    return content


if __name__ == "__main__":
    main()
