"""`entmtp convert`: heads and trees to and from the forms of other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from entmtp.cli.flags import AsJson
from entmtp.cli.options import DEFAULT_MODEL, LoadOptions
from entmtp.cli.session import note, open_target, warnings_as_notes
from entmtp.cli.tree import convert_tree
from entmtp.heads import LAYOUT_NAMES, check_conversion, convert_heads, locate_heads

app = typer.Typer()
app.command("tree")(convert_tree)


@app.callback()
def convert() -> None:
    """Heads and trees to and from the forms of other programs."""


@app.command()
def heads(
    spec: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="Heads: a packaged name, a folder or a file, in any known layout."
        ),
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder.")],
    to: Annotated[
        str, typer.Option(metavar="LAYOUT", help=f"One of {', '.join(LAYOUT_NAMES)}.")
    ] = "own",
    model: Annotated[
        str, typer.Option(metavar="PATH|NAME", help="The model that the heads belong to.")
    ] = DEFAULT_MODEL,
    dtype: Annotated[
        str,
        typer.Option(
            metavar="bfloat16|float16|float32",
            help="Number format in which the model is read; heads keep theirs.",
        ),
    ] = "float32",
    as_json: AsJson = False,
) -> None:
    """Read heads in whatever layout they are, and write them in another.

    What a layout cannot hold is refused by name. The model says what heads leave out: the size of
    its vocabulary, its output rows, its fingerprint.
    """
    check_conversion(out, to)
    locate_heads(spec)  # what is missing is said before the model is loaded
    target = open_target(LoadOptions(model, dtype))
    with warnings_as_notes():
        converted = convert_heads(spec, out, to, target)
    config = converted.config
    note(
        f"{out}: {config.num_draft_heads} {config.kind} heads for {target.name}, {to} layout,"
        f" {config.draft_vocab_size:,} of {config.vocab_size:,} tokens"
    )
    if as_json:
        print(
            json.dumps(
                {
                    "out": str(out),
                    "layout": to,
                    "kind": config.kind,
                    "num_draft_heads": config.num_draft_heads,
                    "num_layers": config.num_layers,
                    "draft_vocab_size": config.draft_vocab_size,
                    "model": target.name,
                },
                allow_nan=False,
            )
        )
