"""What each runtime and number format costs in perplexity, on text that is not ours.

    .venv/bin/python benchmarks/perplexity.py --texts FILE ... --out RESULT.json

A file is JSON lines with `prompt`, `turns` or `text`; each is one text, teacher-forced from a
BOS-less start and cut to `--length` tokens. Perplexity is exp of the mean negative log-likelihood
of all tokens but each text's first; its ratio to the first run's comes with an interval over texts
(bootstrap, seeded), because all runs see the same tokens. A format can hit the right token as often
and still say other things: `divergence` is the mean Kullback-Leibler divergence from the first
run's distributions in nats, which are kept in float16, and `agreement` the share of positions with
the same likeliest token.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment
from entmtp.target.load import load_target

RUNS = (
    *("eager:float32", "eager:bfloat16"),
    *("openvino:float32", "openvino:bfloat16", "openvino:int8"),
    *("native:bfloat16", "native:int8"),
)
NUM_RESAMPLES = 2000


class Row(NamedTuple):
    """Sums over a text's tokens."""

    loss: float
    count: int
    divergence: float = 0.0
    same: float = 0.0


def main() -> None:
    arguments = parse()
    texts = [text for path in arguments.texts for text in read_texts(path)][: arguments.limit]
    report: list[dict[str, object]] = []
    losses: list[list[float]] = []
    reference: list[torch.Tensor] = []
    for spec in arguments.runs:
        runtime, number_format = spec.split(":")
        note(f"{arguments.model} on {spec}")
        target = load_target(
            arguments.model, number_format, progress=note, runtime=runtime, self_check=False
        )
        rows = []
        for place, text in enumerate(texts):
            log_probs, row = text_losses(target, text, arguments.length)
            if not report:
                reference.append(log_probs.half())
            rows.append(row._replace(**apart(reference[place].float(), log_probs)))
        losses.append([row.loss for row in rows])
        counts = [row.count for row in rows]
        low, high = ratio_interval(losses[-1], losses[0], counts)
        mean = sum(losses[-1]) / sum(counts)
        report.append(
            {
                "run": spec,
                "perplexity": math.exp(mean),
                "ratio": math.exp(mean - sum(losses[0]) / sum(counts)),
                "ratio_low": low,
                "ratio_high": high,
                "divergence": sum(row.divergence for row in rows) / sum(counts),
                "agreement": sum(row.same for row in rows) / sum(counts),
            }
        )
    result = {
        "environment": describe_environment(target),
        "texts": [path.name for path in arguments.texts],
        "num_texts": len(texts),
        "num_tokens": sum(counts),
        "runs": report,
    }
    text = json.dumps(result, indent=2)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    print(text)


@torch.inference_mode()
def text_losses(target: TargetModel, text: str, length: int) -> tuple[torch.Tensor, Row]:  # [P, V]
    """Log-probabilities in front of a text's tokens but the first, and what those come to."""
    ids = torch.tensor([target.tokenizer(text)["input_ids"][:length]])  # type: ignore[misc]
    cache = target.new_cache(1, ids.shape[1])
    total, at, told = 0.0, 0, []
    for hidden in target.prefill(ids[:, :-1], cache):
        following = ids[0, at + 1 : at + 1 + hidden.shape[1]]
        log_probs = target.logits(hidden[0]).log_softmax(-1)
        total -= log_probs.gather(1, following[:, None]).double().sum().item()
        at += hidden.shape[1]
        told.append(log_probs)
    return torch.cat(told), Row(total, at)


def apart(reference: torch.Tensor, told: torch.Tensor) -> dict[str, float]:  # [P, V]
    """By how much two runs differ over a text, as fields of `Row`."""
    divergence = (reference.exp() * (reference - told)).sum()
    same = (reference.argmax(-1) == told.argmax(-1)).sum()
    return {"divergence": divergence.item(), "same": same.item()}


def ratio_interval(
    losses: Sequence[float], reference: Sequence[float], counts: Sequence[int]
) -> tuple[float, float]:
    """95 % interval of the ratio of two perplexities, by drawing texts."""
    generator = random.Random(0)
    ratios = []
    for _ in range(NUM_RESAMPLES):
        drawn = generator.choices(range(len(counts)), k=len(counts))
        difference = sum(losses[i] - reference[i] for i in drawn)
        ratios.append(math.exp(difference / sum(counts[i] for i in drawn)))
    ratios.sort()
    return ratios[NUM_RESAMPLES // 40], ratios[-NUM_RESAMPLES // 40]


def read_texts(path: Path) -> list[str]:
    """The texts of a file, at least two words each."""
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    texts = [row.get("text") or row.get("prompt") or "\n".join(row["turns"]) for row in rows]
    return [text for text in texts if len(text.split()) > 1]


def note(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--texts", nargs="+", type=Path, required=True)
    parser.add_argument("--runs", nargs="+", default=list(RUNS), metavar="RUNTIME:FORMAT")
    parser.add_argument("--limit", type=int, help="texts, of all files together")
    parser.add_argument("--length", type=int, default=512, help="tokens of a text")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
