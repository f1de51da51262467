"""`entmtp tree`: look at trees."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from entmtp.trees import Tree, draw_tree, nodes_per_depth, tree_by_name

app = typer.Typer()


@app.callback()
def tree() -> None:
    """Look at draft trees."""


@app.command()
def show(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE",
            help="medusa-63, chain-K, full-WxD, root, or a JSON file of rank paths.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object as the last line of output.")
    ] = False,
) -> None:
    """Draw a tree in the terminal: its nodes by rank, and how many there are at each depth."""
    shown = tree_by_name(spec)
    print(draw_tree(shown))
    print(summary(shown))
    if as_json:
        print(json.dumps(description(shown)))


def summary(shown: Tree) -> str:
    counts = "/".join(map(str, nodes_per_depth(shown)))
    drafts = f"{shown.num_draft_tokens} draft tokens"
    return f"{drafts}, {counts} by depth" if counts else f"{drafts}: plain decoding"


def description(shown: Tree) -> dict[str, object]:
    return {
        "num_nodes": shown.num_nodes,
        "num_draft_tokens": shown.num_draft_tokens,
        "depth": shown.depth,
        "nodes_per_depth": nodes_per_depth(shown),
        "paths": [list(path) for path in shown.paths[1:]],
    }
