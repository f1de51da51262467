"""Why `throughput` brings what it brings, and what was tried against it: replay and clock together.

    .venv/bin/python benchmarks/remedies.py --out RESULT.json --calibration HELD_OUT.jsonl \\
        --source code=humaneval.jsonl --source maths=gsm8k.jsonl --source chat=mt_bench.jsonl

In one run, on the same prompts: every policy of the shipped bank, and `throughput` with a remedy
for each cause that it might fail by. Features: other scores, fitted on the calibration prompts
(`training/held_out.py` writes them) by the code that fits a bank. Calibration: adaptation off, the
bank of the right kind of text, and tables fitted on the very answers. Time model: step times
measured here and now. Cost: neither looks at the root nor adaptation. Every prompt is answered by
all of them in turn, as `entmtp bench` does it.

The same answers are replayed with every variant and priced with the bank's step times, and with
those of this run. So each has a promise beside what became of it, both over the best static tree,
and as a part of what the bank's perfect chooser would gain. `signals` says how much each score
knows of the step that it serves, `by_score` what choosing by it alone would bring, and by all of
those together that are known so far (`blend0`, `blend1`, …); `steps` what the clock says of each
variant's steps and what the table charges for them; `by_prior` how fast to adapt. Be alone on the
machine: twenty-five minutes, two of them for calibration's answers, which `--work FOLDER` keeps.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from kept import note, settings_of, write_result
from kinds import check_sources
from remedy_figures import SHOWN, Live, told
from remedy_variants import Given, Variant, make_variants

from entmtp.bench import BASELINE, find_differences, load_workload, measure
from entmtp.calibrate.answers import AnswerConfig, plan_groups
from entmtp.calibrate.collect import TraceConfig, collect_trace
from entmtp.calibrate.latency_table import all_times
from entmtp.calibrate.pipeline import TIMED_SIZES
from entmtp.calibrate.timing import TimingConfig, measure_latency, trees_to_time
from entmtp.calibrate.trace_file import StoredTrace
from entmtp.calibrate.walk import take_rows
from entmtp.data import Prompt
from entmtp.engine import Engine, GenerationParams
from entmtp.engine.made_for import made_for
from entmtp.engine.shipped_bank import BANK_NAMES, KIND_NAME, serves
from entmtp.heads import DraftHeads, load_heads, locate_heads
from entmtp.measure.paired import Method, Run, Runs, Task
from entmtp.scheduler import Times, TreeBank, TreePolicy, read_bank
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target
from entmtp.trees import Tree

CONTEXTS = (128, 256, 512)
"""That step times are measured at here: the evaluation prompts' answers lie between them"""


def main() -> int:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    target = load_target(arguments.model, arguments.dtype, progress=note, runtime=arguments.runtime)
    heads = load_heads(arguments.heads, target)
    with ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(TemporaryDirectory()))
        setup = Setup(target, heads, arguments, work)
        note("step times")
        given, loads = setup.given(), [load_average()]
        variants = make_variants(given)
        runs = setup.answer(variants)
    loads.append(load_average())
    note("replay")
    differences = find_differences(runs, BASELINE, setup.tasks, target, setup.params)
    content = {
        **told(given, setup.traces, variants, Live(runs, differences, arguments.max_tokens)),
        "bank": about(setup, given.bank),
        "settings": settings_of(arguments),
        "num_prompts": len(setup.tasks),
        "load_average": loads,
        "environment": describe_environment(target),
    }
    write_result(arguments.out, content)
    for row in content["variants"]:
        note(f"{row['name']}: promised {row['replay']['gain']:.3f}, live {row['live'][SHOWN]}")
    return int(any(one.verdict == "fault" for one in differences))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", action="append", required=True, metavar="KIND=FILE.jsonl")
    parser.add_argument("--limit", type=int, default=45, help="prompts of all sources together")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--calibration", required=True, metavar="FILE.jsonl")
    parser.add_argument("--calibration-limit", type=int, default=96)
    parser.add_argument("--timing-seconds", type=float, default=60.0)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runtime", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--heads", default="hydra")
    parser.add_argument("--banks", type=Path, metavar="FOLDER", help="default: the heads' own")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="keep rank traces there")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    check_sources(parser, arguments.source)
    return arguments


class Setup:
    """Model, heads, banks, and both sets of prompts with their rank traces."""

    def __init__(
        self, target: TargetModel, heads: DraftHeads, arguments: argparse.Namespace, work: Path
    ) -> None:
        self._target, self._heads, self._seconds = target, heads, arguments.timing_seconds
        self._answers = AnswerConfig(max_tokens=arguments.max_tokens)
        self._work = work
        self.params = GenerationParams(arguments.max_tokens)
        sources = dict(pair.split("=", 1) for pair in arguments.source)
        self.bank, self.own = self._banks(arguments, list(sources))
        banks = (self.bank, *self.own.values())
        self._wide = Tree.from_paths({path for one in banks for path in one.wide_tree.paths})
        note("calibration prompts")
        prompts = load_workload([arguments.calibration], arguments.calibration_limit)
        self.calibration = self._trace(prompts, "calibration")
        note("evaluation prompts")
        each = max(1, arguments.limit // len(sources))
        prompts = tuple(
            replace(prompt, kind=kind)
            for kind, file in sources.items()
            for prompt in load_workload([file], each)
        )
        trace = self._trace(prompts, "evaluation").trace
        questions = list(chain(*plan_groups(target, prompts, self._answers)))
        places = {
            kind: [place for place, one in enumerate(questions) if one.kind == kind]
            for kind in sources
        }
        self.traces = {kind: take_rows(trace, some) for kind, some in places.items()}
        self.evaluation = take_rows(trace, list(chain(*places.values())))
        self._tasks = {
            kind: [Task(*questions[place]) for place in some] for kind, some in places.items()
        }

    @property
    def tasks(self) -> list[Task]:
        """Kind by kind: the rows of the evaluation trace."""
        return list(chain(*self._tasks.values()))

    def given(self) -> Given:
        """What variants are made of; step times are measured here."""
        return Given(self.bank, self.own, self.calibration.trace, self.evaluation, self._times())

    def answer(self, variants: Sequence[Variant]) -> Runs:
        """Every prompt by every variant in turn, kind by kind."""
        policies = {id(one): one for each in variants for one in each.policies.values()}
        sizes = {rows for policy in policies.values() for rows in policy.num_rows}
        self._target.make_room(len(sizes))
        engines = {key: self._engine(policy) for key, policy in policies.items()}
        runs: dict[str, list[Run]] = {variant.name: [] for variant in variants}
        for kind, tasks in self._tasks.items():
            note(f"{kind}: {len(tasks)} prompts by {len(variants)} variants")
            methods = [Method(one.name, engines[id(one.policies[kind])]) for one in variants]
            for name, own in measure(methods, tasks, self.params).items():
                runs[name] += own
        return runs

    def _engine(self, policy: TreePolicy) -> Engine:
        return Engine(self._target, self._heads, policy)

    def _times(self) -> Times:
        """Steps with the offered trees, and with larger ones for what is drafted wide."""
        offered = [tree for tree in (*self.bank.offer, self.bank.best_static) if tree.depth]
        trees = [*offered, *trees_to_time(self.evaluation.ranks, TIMED_SIZES)]
        texts = [task.prompt_ids for task in self.tasks]
        config = TimingConfig(contexts=CONTEXTS, seconds=self._seconds)
        return all_times([measure_latency(self._target, self._heads, texts, trees, config)])

    def _trace(self, prompts: Sequence[Prompt], name: str) -> StoredTrace:
        folder = self._work / name
        folder.mkdir(parents=True, exist_ok=True)
        config = TraceConfig(self._answers, self._wide, work=folder / "groups")
        out = folder / "trace.safetensors"
        return collect_trace(self._target, self._heads, prompts, out, config)

    def _banks(
        self, arguments: argparse.Namespace, kinds: Sequence[str]
    ) -> tuple[TreeBank, dict[str, TreeBank]]:
        folder = arguments.banks or locate_heads(arguments.heads)
        wanted = made_for(self._target, self._heads)

        def read(name: str) -> TreeBank:
            bank = read_bank(folder / name)
            if not serves(bank, wanted):
                bank.check_made_for(wanted, name)
            return bank

        return read(BANK_NAMES[0]), {kind: read(KIND_NAME.format(kind)) for kind in kinds}


def about(setup: Setup, bank: TreeBank) -> dict[str, Any]:
    """Which bank it is, and whether remedies were fitted on the prompts that it was made from."""
    return {
        "machine": bank.made_for.machine,
        "num_nodes_of_best_static": bank.best_static.num_nodes,
        "num_nodes_offered": [tree.num_nodes for tree in bank.offer],
        "num_calibration_prompts": setup.calibration.trace.num_rows,
        "is_of_these_calibration_prompts": (
            bank.made_from.prompts == setup.calibration.answers["prompts"]
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
