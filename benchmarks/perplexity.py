"""What each runtime and number format costs in perplexity, on text that is not ours.

    .venv/bin/python benchmarks/perplexity.py --texts FILE ... --out RESULT.json

A file is JSON lines with `prompt`, `turns` or `text`; each is one text, teacher-forced from a
BOS-less start and cut to `--length` tokens. Perplexity is exp of the mean negative log-likelihood
of all tokens but each text's first; its ratio to the first run's comes with an interval over texts
(bootstrap, seeded), because all runs see the same tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment
from entmtp.target.load import load_target

RUNS = (
    *("eager:float32", "eager:bfloat16"),
    *("openvino:float32", "openvino:bfloat16", "openvino:int8", "native:int8"),
)
NUM_RESAMPLES = 2000


def main() -> None:
    arguments = parse()
    texts = [text for path in arguments.texts for text in read_texts(path)][: arguments.limit]
    report: list[dict[str, object]] = []
    losses: list[list[float]] = []
    for spec in arguments.runs:
        runtime, number_format = spec.split(":")
        note(f"{arguments.model} on {spec}")
        target = load_target(
            arguments.model, number_format, progress=note, runtime=runtime, self_check=False
        )
        rows = [text_losses(target, text, arguments.length) for text in texts]
        losses.append([loss for loss, _ in rows])
        counts = [count for _, count in rows]
        low, high = ratio_interval(losses[-1], losses[0], counts)
        mean = sum(losses[-1]) / sum(counts)
        report.append(
            {
                "run": spec,
                "perplexity": math.exp(mean),
                "ratio": math.exp(mean - sum(losses[0]) / sum(counts)),
                "ratio_low": low,
                "ratio_high": high,
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
def text_losses(target: TargetModel, text: str, length: int) -> tuple[float, int]:
    """Negative log-likelihood of a text's tokens but the first, and how many they are."""
    ids = torch.tensor([target.tokenizer(text)["input_ids"][:length]])  # type: ignore[misc]
    cache = target.new_cache(1, ids.shape[1])
    total, at = 0.0, 0
    for hidden in target.prefill(ids[:, :-1], cache):
        following = ids[0, at + 1 : at + 1 + hidden.shape[1]]
        log_probs = target.logits(hidden[0]).log_softmax(-1)
        total -= log_probs.gather(1, following[:, None]).double().sum().item()
        at += hidden.shape[1]
    return total, at


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
