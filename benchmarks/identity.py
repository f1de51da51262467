"""Every prompt in float32, plainly and with trees of several sizes: equal to the token, or exit 1.

    .venv/bin/python benchmarks/identity.py --prompts FILE ... --limit 60 --out RESULT.json

Eight prompts step together, so this is quick; speed is not what it measures. In float32 a
sequence's tokens do not depend on its company. Also counts mean acceptance lengths (bonus token
included), which do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from entmtp.bench import load_workload, make_tasks
from entmtp.engine import Engine, GenerationParams, Result
from entmtp.heads import load_heads, locate_heads, read_static_trees
from entmtp.scheduler import PlainPolicy, StaticPolicy, TreePolicy
from entmtp.target.environment import describe_environment
from entmtp.target.load import load_target
from entmtp.trees import Tree

SIZES = {"medusa": (16,), "hydra": (16, 64)}
"""Nodes of the heads' own trees, the root included."""
BATCH_SIZE = 8


def main() -> int:
    arguments = parse()
    target = load_target(arguments.model, "float32")
    prompts = load_workload(arguments.prompts, arguments.limit)
    tasks = make_tasks(Engine(target), prompts)
    params = GenerationParams(arguments.max_tokens)
    rows = []

    def run(heads: str | None, name: str, policy: TreePolicy) -> list[Result]:
        loaded = None if heads is None else load_heads(heads, target)
        engine = Engine(target, loaded, policy, max_batch_size=BATCH_SIZE)
        print(f"{heads or 'no heads'}, {name}", file=sys.stderr, flush=True)
        return engine.generate_many([task.prompt_ids for task in tasks], params)

    plain = run(None, "plain", PlainPolicy())
    for heads in SIZES:
        for name, tree in trees_of(heads).items():
            results = run(heads, name, StaticPolicy(tree))
            pairs = zip(plain, results, strict=True)
            steps = sum(one.stats.num_drafts for one in results)
            accepted = sum(one.stats.num_accepted_tokens for one in results)
            rows.append(
                {
                    "heads": heads,
                    "tree": name,
                    "num_nodes": tree.num_nodes,
                    "num_identical": sum(a.token_ids == b.token_ids for a, b in pairs),
                    "num_prompts": len(results),
                    "mean_acceptance_length": 1 + accepted / steps,
                    "by_source": acceptance_by_source([task.prompt_id for task in tasks], results),
                }
            )
            print(f"  {rows[-1]}", file=sys.stderr, flush=True)
    settings = {"max_tokens": arguments.max_tokens, "batch_size": BATCH_SIZE, "temperature": 0}
    content = {"rows": rows, "settings": settings, "environment": describe_environment(target)}
    arguments.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["num_identical"] == row["num_prompts"] for row in rows) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", nargs="+", default=["packaged"])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def trees_of(heads: str) -> dict[str, Tree]:
    stored = read_static_trees(locate_heads(heads))
    static = {entry.tree.num_nodes: entry.tree for entry in stored}
    return {f"best static, {size}": static[size] for size in SIZES[heads]}


def acceptance_by_source(prompt_ids: list[str], results: list[Result]) -> dict[str, float]:
    totals: dict[str, list[int]] = {}
    for prompt_id, result in zip(prompt_ids, results, strict=True):
        total = totals.setdefault(prompt_id.partition("/")[0], [0, 0])
        total[0] += result.stats.num_accepted_tokens
        total[1] += result.stats.num_drafts
    return {source: 1 + accepted / steps for source, (accepted, steps) in totals.items()}


if __name__ == "__main__":
    sys.exit(main())
