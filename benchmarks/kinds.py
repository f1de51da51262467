"""What is lost with one bank for text of all kinds, against the bank for the right kind.

    .venv/bin/python benchmarks/kinds.py --heads hydra --out RESULT.json \\
        --source code=humaneval.jsonl --source maths=gsm8k.jsonl --source chat=mt_bench.jsonl

Banks are the shipped ones (`training/shipped_banks.py`), which share their step times. The model
answers each source's prompts, the answers' ranks under the heads are recorded, and every policy is
replayed over them (`calibrate/rehearse.py`) with either bank, priced with those step times: so
the machine's noise is in neither. `loss` is by how much tokens a second are fewer with the bank
for all kinds, with a 95 % interval over prompts drawn again. What a policy's own arithmetic costs
is left out, being the same for both banks. Three minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from kept import note, write_result

from entmtp.bench import load_workload
from entmtp.calibrate.answers import AnswerConfig
from entmtp.calibrate.collect import TraceConfig, collect_trace
from entmtp.calibrate.intervals import redraws
from entmtp.calibrate.monotone import Floats
from entmtp.calibrate.rehearse import run_seconds
from entmtp.calibrate.replay import replay_policy
from entmtp.calibrate.trace import RankTrace
from entmtp.calibrate.walk import row_tokens
from entmtp.engine.made_for import made_for
from entmtp.engine.shipped_bank import KINDS, shipped_bank_for, shipped_banks
from entmtp.heads import DraftHeads, load_heads, locate_heads
from entmtp.scheduler import TreeBank, policy_from_bank
from entmtp.scheduler.bank import RECOMMENDABLE
from entmtp.scheduler.times import StepTimes
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment
from entmtp.target.load import load_target
from entmtp.trees import Tree

LIMIT = 0.01
"""What issue 5 allows to lose"""


def main() -> int:
    arguments = parse()
    target = load_target("smollm2-135m", progress=note, runtime="auto")
    heads = load_heads(arguments.heads, target)
    general = bank_of(target, heads, arguments.heads, None)
    sources = {}
    for pair in arguments.source:
        kind, _, file = pair.partition("=")
        note(f"{kind}: {file}")
        bank = bank_of(target, heads, arguments.heads, kind)
        wide = Tree.from_paths({*general.wide_tree.paths, *bank.wide_tree.paths})
        trace = trace_of(target, heads, file, wide, arguments)
        sources[kind] = {"file": Path(file).name, "num_prompts": trace.num_rows}
        sources[kind] |= compared(trace, general, bank)
    content = {
        "heads": arguments.heads,
        "limit": LIMIT,
        "recommended": general.timing.recommended,
        "max_tokens": arguments.max_tokens,
        "sources": sources,
        "environment": describe_environment(target),
    }
    write_result(arguments.out, content)
    for kind, source in sources.items():
        note(f"{kind}: {source['as_recommended']}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heads", default="hydra", choices=("medusa", "hydra"))
    parser.add_argument("--source", action="append", required=True, metavar="KIND=FILE.jsonl")
    parser.add_argument("--limit", type=int, default=40, help="prompts of each source")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    check_sources(parser, arguments.source)
    return arguments


def check_sources(parser: argparse.ArgumentParser, pairs: Sequence[str]) -> None:
    """End the script where one of KIND=FILE has no kind that there are banks for."""
    for pair in pairs:
        if pair.partition("=")[0] not in KINDS:
            parser.error(f"--source {pair}: give one of {', '.join(KINDS)}, =, and a file")


def bank_of(target: TargetModel, heads: DraftHeads, name: str, kind: str | None) -> TreeBank:
    wanted = made_for(target, heads)
    banks = shipped_banks(locate_heads(name), kind)
    if (bank := shipped_bank_for(wanted, banks)) is None:
        banks[0].check_made_for(wanted, f"the shipped bank for {kind or 'all kinds'}")
        raise AssertionError("it serves what it was made for")
    return bank


def trace_of(
    target: TargetModel, heads: DraftHeads, file: str, wide: Tree, arguments: argparse.Namespace
) -> RankTrace:
    """What both banks' policies may want to know of the answers."""
    prompts = load_workload([file], arguments.limit)
    with tempfile.TemporaryDirectory() as folder:
        config = TraceConfig(AnswerConfig(max_tokens=arguments.max_tokens), wide)
        return collect_trace(
            target, heads, prompts, Path(folder) / "trace.safetensors", config
        ).trace


def compared(trace: RankTrace, general: TreeBank, own: TreeBank) -> dict[str, Any]:
    """Every policy with both banks, and each bank's recommended one."""
    times = times_at(general, trace)
    tokens = row_tokens(trace).astype(np.float64)
    seconds = {
        name: tuple(
            run_seconds(trace, replay_policy(trace, policy_from_bank(name, bank)), times)
            for bank in (general, own)
        )
        for name in RECOMMENDABLE
    }
    weights = redraws(trace.num_rows, 0)
    chosen = seconds[general.timing.recommended][0], seconds[own.timing.recommended][1]
    return {
        "policies": {
            name: loss(tokens, one, other, weights) for name, (one, other) in seconds.items()
        },
        "as_recommended": {"own": own.timing.recommended, **loss(tokens, *chosen, weights)},
    }


def times_at(bank: TreeBank, trace: RankTrace) -> StepTimes:
    """Of the measured context that is nearest to the text's average length."""
    length = float(np.mean(trace.prompt_lengths + np.diff(trace.row_starts) / 2))
    return min(bank.timing.step_times, key=lambda each: abs(each.num_tokens - length)).times


def loss(tokens: Floats, general: Floats, own: Floats, weights: Floats) -> Mapping[str, float]:
    """Tokens a second with either bank, and what the general one loses."""
    drawn = 1 - (weights @ own) / (weights @ general)
    low, high = np.quantile(drawn, (0.025, 0.975))
    return {
        "tokens_per_second": float(tokens.sum() / general.sum()),
        "tokens_per_second_of_own": float(tokens.sum() / own.sum()),
        "loss": float(1 - own.sum() / general.sum()),
        "low": float(low),
        "high": float(high),
    }


if __name__ == "__main__":
    sys.exit(main())
