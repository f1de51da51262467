"""What a draft vocabulary of each size covers, and what drafting with it costs here.

    .venv/bin/python benchmarks/draft_vocabulary.py --features FOLDER --out RESULT.json

Ids are ranked as in training (the target's own distribution on training rows, and their prompts);
coverage is the share of held-out answer tokens. Cost is the median time of a draft of the tree of
16 nodes by Hydra++ heads of the shipped shape (weights do not matter for time), sizes taking turns.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from entmtp.heads import HeadsConfig, build_heads, choose_draft_ids, default_tree, prefix_shape
from entmtp.heads.format import locate_heads
from entmtp.target import TargetModel
from entmtp.target.environment import describe_environment, load_average
from entmtp.target.load import load_target
from entmtp.train.config import TrainConfig
from entmtp.train.dataset import split_rows
from entmtp.train.pipeline import PROMPT_WEIGHT
from entmtp.train.shards import FeatureReader, RowRef, list_rows, teacher_mass
from entmtp.trees import tree_buffers

SIZES = (2048, 4096, 8192, 12288, 16384, 32768, 49152)
NUM_ROUNDS = 15


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    target = load_target("smollm2-135m")
    split = split_rows(list_rows(arguments.features), TrainConfig().validation_share)
    mass = teacher_mass(split.train, target.vocab_size, PROMPT_WEIGHT)
    written = count_written(split.validation, target.vocab_size)
    before = load_average()
    milliseconds = draft_milliseconds(target, mass)
    rows = [
        {
            "draft_vocab_size": size,
            "coverage": float(written[choose_draft_ids(mass, size)].sum() / written.sum()),
            "draft_milliseconds": milliseconds[size],
        }
        for size in SIZES
    ]
    environment = {
        **describe_environment(target),
        "load_average_before": before,
        "load_average_after": load_average(),
    }
    content = {"rows": rows, "environment": environment}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for row in rows:
        print(row)


def count_written(refs: tuple[RowRef, ...] | list[RowRef], vocab_size: int) -> torch.Tensor:
    """How often each id stands in the answers: `[V]`."""
    reader = FeatureReader()
    rows = [reader.read(ref) for ref in refs]
    ids = torch.cat([row.ids[row.num_prompt :] for row in rows])
    return torch.bincount(ids, minlength=vocab_size).double()


@torch.inference_mode()
def draft_milliseconds(target: TargetModel, mass: torch.Tensor) -> dict[int, float]:
    recipe = TrainConfig()
    buffers = tree_buffers((default_tree(locate_heads("hydra")),), target.device)
    candidates = {}
    for size in SIZES:
        config = HeadsConfig(
            kind="hydra++",
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            num_draft_heads=recipe.num_draft_heads,
            num_layers=recipe.num_layers,
            draft_vocab_size=size,
            output="target",
            prefix=prefix_shape(target),
        )
        heads = build_heads(config).to(target.dtype).eval()
        if heads.draft_ids is not None:
            heads.draft_ids.copy_(choose_draft_ids(mass, size))
        heads.bind(target)
        candidates[size] = heads
    context = torch.randn(1, target.hidden_size).to(target.dtype)
    root = torch.tensor([1])
    times: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(NUM_ROUNDS):
        for size, heads in candidates.items():
            started = perf_counter()
            heads.draft(context, root, buffers)
            times[size].append(1000 * (perf_counter() - started))
    return {size: median(values[2:]) for size, values in times.items()}


if __name__ == "__main__":
    main()
