"""The model card beside trained heads: `README.md`, made from their provenance.

Knows: what a provenance holds. Does not know: how it came about.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from entmtp.heads import HeadsConfig, StaticTree

CARD_NAME = "README.md"


_ROWS = {
    "target": "the model's own output rows",
    "own": "output rows of their own",
    "projected": "the model's own output rows behind a trained matrix each",
}


def write_card(
    folder: Path,
    base: str,
    config: HeadsConfig,
    provenance: Mapping[str, Any],
    trees: list[StaticTree],
) -> None:
    """Write the card, whole or not at all."""
    parts = [
        _title(base, config),
        _data(provenance),
        _figures(provenance["validation"], trees),
        _recipe(provenance["recipe"]),
    ]
    half = folder / f".{CARD_NAME}"
    half.write_text("\n".join(parts), encoding="utf-8")
    half.replace(folder / CARD_NAME)


def _title(base: str, config: HeadsConfig) -> str:
    rows = _ROWS[config.output]
    return f"""# {config.kind} draft heads for {base}

{config.num_draft_heads} heads of {config.num_layers} residual blocks, {rows}
for {config.draft_vocab_size:,} of {config.vocab_size:,} token ids. They propose tokens that the
model then verifies: they change how fast it answers, never what it answers.
"""


def _data(provenance: Mapping[str, Any]) -> str:
    kinds = ", ".join(
        f"{kind} {count:,}" for kind, count in provenance["num_train_rows_by_kind"].items()
    )
    covered = provenance.get("draft_vocabulary_coverage")
    cover = (
        "" if covered is None else f"The draft vocabulary covers {covered:.1%} of held-out text.\n"
    )
    before = provenance.get("begun_with")
    begun = (
        ""
        if before is None
        else (
            f"They began with heads that had seen {before['num_train_rows']:,} answers with"
            f" {before['num_train_tokens']:,} tokens. Then came\n"
        )
    )
    rows, tokens = (provenance[f"num_train_{what}"] for what in ("rows", "tokens"))
    return f"""## Data

{begun}{rows:,} answers with {tokens:,} tokens ({kinds});
{provenance["num_validation_rows"]:,} more, to other prompts, were held out. {cover}"""


def _figures(validation: Mapping[str, Any], trees: list[StaticTree]) -> str:
    shares = validation["top_shares"]
    head_rows = [
        f"| {head + 1} | " + " | ".join(f"{shares[name][head]:.1%}" for name in shares) + " |"
        for head in range(len(next(iter(shares.values()))))
    ]
    tree_rows = [f"| {tree.num_nodes} | {tree.depth} | {length:.2f} |" for tree, length in trees]
    return "\n".join(
        [
            "## Held-out figures",
            "",
            "Share of the true next tokens among each head's best proposals:",
            "",
            "| head | " + " | ".join(shares) + " |",
            "|---" * (len(shares) + 1) + "|",
            *head_rows,
            "",
            "Mean acceptance length (tokens a step, the bonus token included) of the best static",
            "trees, picked on greedy training rows and replayed on greedy held-out ones:",
            "",
            "| nodes (root included) | depth | mean acceptance length |",
            "|---|---|---|",
            *tree_rows,
            "",
        ]
    )


def _recipe(recipe: Mapping[str, Any]) -> str:
    lines = [f"| {name} | {value} |" for name, value in recipe.items()]
    return "\n".join(
        [
            "## Recipe",
            "",
            "`entmtp train-heads` with",
            "",
            "| setting | value |",
            "|---|---|",
            *lines,
            "",
        ]
    )
