"""`entmtp tree`: look at trees, and write them in the forms of other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from entmtp.cli.flags import AsJson
from entmtp.cli.places import check_overwrites, given, tree_files
from entmtp.trees import (
    FORMS,
    Tree,
    draw_tree,
    format_tree,
    nodes_per_depth,
    parse_tree,
    tree_by_name,
    write_tree,
)

app = typer.Typer()

Spec = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="medusa-63, chain-K, full-WxD, eagle-KxSxN, root, or a file: JSON or Python rank"
        " paths, a vLLM or an EAGLE object. FILE:NAME picks one of several in Python.",
    ),
]


@app.callback()
def tree() -> None:
    """Look at draft trees and convert them."""


@app.command()
def show(
    spec: Spec,
    as_json: AsJson = False,
) -> None:
    """Draw a tree in the terminal: its nodes by rank, and how many there are at each depth."""
    shown = tree_by_name(spec)
    print(draw_tree(shown))
    print(summary(shown))
    if as_json:
        print(json.dumps(description(shown), allow_nan=False))


@app.command("convert")
def convert_tree(
    spec: Spec,
    out: Annotated[
        Path | None,
        typer.Argument(metavar="[OUT]", help="File to write; standard output without it."),
    ] = None,
    to: Annotated[str, typer.Option(metavar="FORM", help=f"One of {', '.join(FORMS)}.")] = "paths",
) -> None:
    """Write a tree in the form of another program: paths (JSON), medusa, vllm or eagle."""
    if out is not None:
        check_overwrites(given("OUT", out), tree_files("FILE", spec))
    converted = tree_by_name(spec)
    text = format_tree(converted, to)
    if parse_tree(text) != converted:
        print(
            f"note: {to} says how many nodes there are, not which; the shape is lost",
            file=sys.stderr,
        )
    if out is None:
        print(text)
        return
    write_tree(converted, to, out)
    print(f"{out}: {summary(converted)}", file=sys.stderr)


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
