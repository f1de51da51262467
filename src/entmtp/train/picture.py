"""One picture of a run: losses and acceptance lengths over the steps.

Knows: a metrics file. Does not know: training. Needs the extra `plot`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from entmtp.errors import BadInput
from entmtp.train.metrics import read_metrics

SMOOTHING = 0.95


def draw_run(metrics: Path, picture: Path) -> None:
    """Draw a run's metrics into a PNG.

    Raises:
        BadInput: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput(
            "the picture needs matplotlib, which is not installed (pip install matplotlib)"
        ) from error
    entries = read_metrics(metrics)
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_losses(left, [entry for entry in entries if "loss" in entry])
    _draw_lengths(right, [entry for entry in entries if "validation" in entry])
    figure.savefig(picture, dpi=130, format="png")


def _draw_losses(axes: Any, entries: list[dict[str, Any]]) -> None:
    num_draft_heads = len(entries[0]["head_losses"]) if entries else 0
    for head in range(num_draft_heads):
        # A head without a label in a batch of short rows has no loss there.
        labelled = [entry for entry in entries if entry["head_losses"][head] is not None]
        values = _smooth([entry["head_losses"][head] for entry in labelled])
        axes.plot([entry["step"] for entry in labelled], values, label=f"head {head + 1}")
    axes.set(xlabel="step", ylabel="cross-entropy (nats, smoothed)", title="Training loss")
    axes.grid(alpha=0.3)
    if num_draft_heads:
        axes.legend()


def _draw_lengths(axes: Any, entries: list[dict[str, Any]]) -> None:
    steps = [entry["step"] for entry in entries]
    names = entries[0]["validation"]["mean_acceptance_length"] if entries else {}
    for index, name in enumerate(names):
        for source, style in (
            ("mean_acceptance_length", "-"),
            ("seen_mean_acceptance_length", ":"),
        ):
            values = [entry["validation"][source][name] for entry in entries]
            label = name if style == "-" else None
            axes.plot(steps, values, style, color=f"C{index}", label=label)
    axes.set(
        xlabel="step",
        ylabel="tokens per step (bonus included)",
        title="Mean acceptance length, replayed\n(solid: held-out rows, dotted: training rows)",
    )
    axes.grid(alpha=0.3)
    if names:
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))  # lines are everywhere inside


def _smooth(values: list[float]) -> list[float]:
    smoothed: list[float] = []
    for value in values:
        last = smoothed[-1] if smoothed else value
        smoothed.append(SMOOTHING * last + (1.0 - SMOOTHING) * value)
    return smoothed
