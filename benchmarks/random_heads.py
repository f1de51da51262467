"""Whether a bank and a policy hold their ground where nothing is ever accepted.

    .venv/bin/python benchmarks/random_heads.py --out RESULT.json --prompts FILE ...

The heads are the shipped Hydra heads with every matrix drawn at random, as wide as the trained one;
the bank is the shipped one, relabelled, which promises what trained heads reach: a foreign bank.
Every prompt is answered plainly and by each policy at the same time, some steps of each in turn, so
that what the machine does in a second, it does to all. A policy's ratio is of its tokens a second
to plain decoding's in the same prompt, once over all tokens behind the first and once over those
behind the 64th; reported are geometric means with 95 % intervals (Student's t of the logarithms).
Be alone on the machine: three minutes. With `--write FOLDER` the random heads are only written, for
a calibration of their own.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import torch
from kept import note, write_result
from safetensors.torch import load_file, save_file

from entmtp.bench import load_workload
from entmtp.engine import Engine, GenerationParams, TokenEvent
from entmtp.engine.made_for import made_for
from entmtp.engine.shipped_bank import shipped_bank_for, shipped_banks
from entmtp.heads import load_heads, locate_heads
from entmtp.measure.paired import STEPS_OF_A_TURN
from entmtp.measure.statistics import geometric_mean_interval
from entmtp.scheduler import policy_from_bank
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target

POLICIES = ("throughput", "per-step", "hysteresis", "static")
"""The first two adapt"""
SETTLED = 64
"""Tokens after which issue 5 asks for `LIMIT`"""
LIMIT = 0.95
WEIGHTS = "heads.safetensors"


def main() -> int:
    arguments = parse()
    if arguments.write is not None:
        write_heads(arguments.write, arguments.seed)
        return 0
    target = load_target("smollm2-135m", progress=note, runtime="auto")
    engines = engines_of(target, arguments.seed)
    prompts = load_workload(arguments.prompts, arguments.limit)
    params = GenerationParams(arguments.max_tokens, ignore_eos=True)
    loads = [load_average()]
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    accepted: dict[str, list[float]] = {name: [] for name in engines}
    for name in engines:
        engines[name].generate(prompts[0].messages, GenerationParams(24))  # warm-up
    dice = Random(0)
    for prompt in prompts:
        answers = timed(engines, prompt.messages, params, dice)
        ids = {tuple(one.ids) for one in answers.values()}
        assert len(ids) == 1, "answers are plain decoding's"
        for name, one in answers.items():
            rates[name].append((rate(one.seconds, 1), rate(one.seconds, SETTLED)))
            accepted[name].append(len(one.ids) / one.num_steps)
    loads.append(load_average())
    content = {
        "limit": LIMIT,
        "settled": SETTLED,
        "num_prompts": len(rates["plain"]),
        "max_tokens": arguments.max_tokens,
        "policies": {
            name: summary(rates[name], rates["plain"], accepted[name])
            for name in engines
            if name != "plain"
        },
        "load_average": loads,
        "environment": describe_environment(target),
    }
    write_result(arguments.out, content)
    for name, found in content["policies"].items():
        note(f"{name}: {found}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", nargs="+", default=["packaged"])
    parser.add_argument("--limit", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="only write the heads there")
    arguments = parser.parse_args()
    if (arguments.out is None) == (arguments.write is None):
        parser.error("give --out RESULT.json, or --write FOLDER")
    return arguments


def engines_of(target: Any, seed: int) -> dict[str, Engine]:
    """Plain decoding, and a policy each with random heads and a bank of trained ones."""
    shipped = locate_heads("hydra")
    trained = made_for(target, load_heads(shipped, target))
    bank = shipped_bank_for(trained, shipped_banks(shipped))
    assert bank is not None, "there is no shipped bank for this runtime"
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "random"
        write_heads(folder, seed)
        heads = load_heads(folder, target)
    foreign = replace(bank, made_for=made_for(target, heads))
    engines = {"plain": Engine(target)}
    for name in POLICIES:
        engines[name] = Engine(target, heads, policy_from_bank(name, foreign))
    return engines


def write_heads(folder: Path, seed: int) -> None:
    """The shipped Hydra heads as a folder of their own, with other weights and no banks."""
    shutil.copytree(locate_heads("hydra"), folder, ignore=shutil.ignore_patterns("bank*"))
    save_file(scrambled(load_file(folder / WEIGHTS), seed), folder / WEIGHTS)


def scrambled(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Matrices drawn anew from a normal distribution as wide as each one's numbers."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(tensor.shape, generator=generator) * tensor.float().std())
        .to(tensor.dtype)
        .contiguous()
        if tensor.is_floating_point() and tensor.dim() == 2
        else tensor
        for name, tensor in weights.items()
    }


class Answer:
    """What was said so far, what each token took, and in how many steps."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.seconds: list[float] = []
        self.num_steps = 0

    def take(self, ids: Sequence[int], seconds: float) -> None:
        self.ids += ids
        self.seconds += [seconds / len(ids)] * len(ids)
        self.num_steps += 1


def timed(
    engines: dict[str, Engine], prompt: Any, params: GenerationParams, dice: Random
) -> dict[str, Answer]:
    """An answer of every engine, some steps of each in turn."""
    running = {name: engine.stream(prompt, params) for name, engine in engines.items()}
    answers = {name: Answer() for name in engines}
    while running:
        for name in dice.sample(list(running), len(running)):
            for _ in range(STEPS_OF_A_TURN):
                started = perf_counter()
                event = next(running[name], None)
                if event is None:
                    del running[name]
                    break
                if isinstance(event, TokenEvent):
                    answers[name].take(event.token_ids, perf_counter() - started)
    return answers


def rate(seconds: Sequence[float], first: int) -> float:
    """Tokens a second behind the first so many."""
    return len(seconds[first:]) / sum(seconds[first:])


def summary(
    own: Sequence[tuple[float, float]], plain: Sequence[tuple[float, float]], steps: Sequence[float]
) -> dict[str, Any]:
    found: dict[str, Any] = {"tokens_per_step": sum(steps) / len(steps)}
    for place, name in enumerate(("over_plain", "over_plain_once_settled")):
        ratios = [one[place] / base[place] for one, base in zip(own, plain, strict=True)]
        found[name] = geometric_mean_interval(ratios)._asdict()
    return found


if __name__ == "__main__":
    sys.exit(main())
