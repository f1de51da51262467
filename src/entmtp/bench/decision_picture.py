"""A picture of a run's decisions: its text coloured by tree size, entropy and lengths below.

Knows: logged runs. Does not know: how they were made, terminals. Needs the extra `plot`.
"""

from __future__ import annotations

import html
import io
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from entmtp.engine.decision_log import LoggedRun, LoggedStep
from entmtp.errors import BadInput

LINE_LENGTH = 110
"""Characters of text in a line of the picture."""
MAX_LINES = 60
COLOURS = ("#e8e8e8", "#d5e8d4", "#a8d5a2", "#78bd7c", "#4aa35c", "#2a8046", "#145c32")
"""From plain decoding to the largest trees; dark letters on the light ones."""
_NUM_DARK = 3


class Piece(NamedTuple):
    """Text of one step in one line."""

    line: int
    column: int
    text: str
    num_nodes: int | None
    is_last: bool
    """Of its step"""


def draw_decisions(run: LoggedRun, picture: Path) -> None:
    """Draw one answer's decisions into a PNG, or into an HTML page if the name ends so.

    Raises:
        BadInput: matplotlib is not installed, the name ends otherwise, or there is no step.
    """
    if picture.suffix not in (".png", ".html"):
        raise BadInput(f"{picture} ends in {picture.suffix!r}; give a name in .png or .html")
    if not any(step.num_nodes for step in run.steps):
        raise BadInput("the run has no steps to draw; give a longer one")
    if picture.suffix == ".png":
        picture.write_bytes(_drawn(run, "png", with_text=True))
    else:
        picture.write_text(_page(run), encoding="utf-8")


def colour(num_nodes: int | None) -> str:
    """Of a step that verified so many rows: one shade more each time they double."""
    if num_nodes is None:
        return "#ffffff"
    return COLOURS[min((num_nodes - 1).bit_length(), len(COLOURS) - 1)]


def _ink(num_nodes: int | None) -> str:
    return "#ffffff" if colour(num_nodes) in COLOURS[-_NUM_DARK:] else "#1a1a1a"


def pieces(steps: Sequence[LoggedStep], line_length: int = LINE_LENGTH) -> Iterator[Piece]:
    """The text cut into lines, each piece with the tree of its step."""
    line = column = 0
    for step in steps:
        parts = step.text.replace("\t", "    ").split("\n")
        num_breaks = len(parts) - 1
        for number, part in enumerate(parts):
            if number:
                line, column = line + 1, 0
            while part:
                if column == line_length:
                    line, column = line + 1, 0
                here, part = part[: line_length - column], part[line_length - column :]
                is_last = number == num_breaks and not part
                yield Piece(line, column, here, step.num_nodes, is_last)
                column += len(here)


def _drawn(run: LoggedRun, form: str, *, with_text: bool) -> bytes:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput(
            "the picture needs matplotlib, which is not installed (pip install matplotlib)"
        ) from error
    placed = [one for one in pieces(run.steps) if one.line < MAX_LINES] if with_text else []
    num_lines = 1 + max((one.line for one in placed), default=-1)
    heights = [0.17 * num_lines + 0.3] if with_text else []
    figure = Figure(figsize=(12, sum(heights) + 5.2), layout="constrained")
    grid = figure.subplots(3 if with_text else 2, 1, height_ratios=[*heights, 2.2, 2.2])
    if with_text:
        _draw_text(grid[0], placed, num_lines)
    steps = [step for step in run.steps if step.num_nodes is not None]
    _draw_signals(grid[-2], steps)
    _draw_lengths(grid[-1], steps)
    figure.suptitle(title(run), fontsize=10)
    out = io.BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box, which says enough.
        warnings.filterwarnings("ignore", message="Glyph")
        figure.savefig(out, dpi=110, format=form)
    return out.getvalue()


def title(run: LoggedRun) -> str:
    """What was run, and how it went."""
    steps = [step for step in run.steps if step.num_nodes is not None]
    about = " · ".join(str(run.about[key]) for key in ("model", "method") if key in run.about)
    length = sum(step.num_tokens for step in steps) / max(len(steps), 1)
    return f"{about} · {len(steps)} steps, {length:.2f} tokens a step (bonus token included)"


def _draw_text(axes: Any, placed: Sequence[Piece], num_lines: int) -> None:
    from matplotlib.patches import Rectangle

    axes.set(xlim=(0, LINE_LENGTH), ylim=(num_lines, 0))
    axes.axis("off")
    for piece in placed:
        width = len(piece.text) - (0.25 if piece.is_last else 0.0)  # a seam between steps
        axes.add_patch(
            Rectangle(
                (piece.column, piece.line), width, 0.92, facecolor=colour(piece.num_nodes), lw=0
            )
        )
        for place, letter in enumerate(piece.text):
            # Letter by letter: no font's own widths decide where the next step begins.
            if letter.isprintable() and letter != " ":
                axes.text(
                    piece.column + place + 0.5,
                    piece.line + 0.5,
                    letter.replace("$", r"\$"),
                    fontsize=8,
                    family="monospace",
                    ha="center",
                    va="center",
                    color=_ink(piece.num_nodes),
                )


def _draw_signals(axes: Any, steps: Sequence[LoggedStep]) -> None:
    axes.bar(
        range(len(steps)),
        [step.num_nodes for step in steps],
        width=1.0,
        color=[colour(step.num_nodes) for step in steps],
    )
    axes.set(ylabel="rows verified", xlim=(-0.5, len(steps) - 0.5), title="")
    entropies = [float("nan") if step.entropy is None else step.entropy for step in steps]
    right = axes.twinx()
    right.plot(range(len(steps)), entropies, color="#b0413e", lw=1)
    right.set_ylabel("entropy of the root (nats)", color="#b0413e")
    right.set_ylim(bottom=0)


def _draw_lengths(axes: Any, steps: Sequence[LoggedStep]) -> None:
    places = range(len(steps))
    axes.bar(places, [step.num_accepted for step in steps], width=1.0, color="#7a9cc6")
    expected = [
        float("nan") if step.expected_accepted is None else step.expected_accepted for step in steps
    ]
    if any(value == value for value in expected):
        axes.step(places, expected, where="mid", color="#1a1a1a", lw=1, label="expected")
        axes.legend(loc="upper right")
    axes.set(xlabel="step", ylabel="drafts accepted", xlim=(-0.5, len(steps) - 0.5))


def _page(run: LoggedRun) -> str:
    """A page that stands alone: the text as text, the curves as one drawing inside."""
    spans = "".join(
        f'<span style="background:{colour(step.num_nodes)};color:{_ink(step.num_nodes)}"'
        f' title="{_told(step)}">{html.escape(step.text)}</span>'
        for step in run.steps
    )
    drawing = _drawn(run, "svg", with_text=False).decode()
    shades = "".join(
        f'<span style="background:{colour(rows)};color:{_ink(rows)}">&nbsp;{rows}&nbsp;</span>'
        for rows in (1, 2, 4, 8, 16, 32, 64)
    )
    return (
        "<!doctype html><meta charset=utf-8><title>Decisions</title>"
        f"<p>{html.escape(title(run))}<p>rows verified: {shades}"
        f'<pre style="white-space:pre-wrap;font-size:13px;line-height:1.5">{spans}</pre>'
        f"{drawing[drawing.index('<svg') :]}\n"
    )


def _told(step: LoggedStep) -> str:
    if step.num_nodes is None:
        return "no step"
    expected = (
        "" if step.expected_accepted is None else f" of {step.expected_accepted:.2f} expected"
    )
    return f"{step.num_nodes} rows, {step.num_accepted} drafts accepted{expected}"
