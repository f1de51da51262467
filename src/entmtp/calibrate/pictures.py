"""Pictures of a calibration, from its numbers alone.

Knows: what `study.py` writes. Does not know: traces, models, pages. Needs the extra `plot`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from entmtp.calibrate.live_numbers import finalist_name
from entmtp.errors import BadInput

BLUE, RED, GREY, GREEN = "#2c6fab", "#b0413e", "#9a9a9a", "#2a8046"
Numbers = Mapping[str, Any]


def need_matplotlib() -> None:
    """Raises BadInput: it is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise BadInput(
            "the report needs matplotlib, which is not installed (pip install matplotlib); leave"
            " --report out to do without"
        ) from error


def draw(name: str, numbers: Numbers) -> bytes:
    """One of `PICTURES` as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), layout="constrained")
    PICTURES[name](figure.subplots(), numbers)
    out = io.BytesIO()
    # Without a date and a version in the file, equal numbers are equal pictures.
    figure.savefig(out, dpi=110, format="png", metadata={"Software": None})
    return out.getvalue()


def _frontier(axes: Any, numbers: Numbers) -> None:
    trees = numbers["trees"]
    for label, colour, size, kept in (
        ("candidates", GREY, 14, lambda tree: True),
        ("offered step by step", RED, 46, lambda tree: tree["is_offered"]),
        ("the static bank", BLUE, 22, lambda tree: tree["is_chosen"]),
    ):
        some = [tree for tree in trees if kept(tree)]
        axes.scatter(
            [1000 * tree["step_seconds"] for tree in some],
            [tree["mean_acceptance_length"]["value"] for tree in some],
            s=size,
            color=colour,
            label=label,
        )
    for tree in trees:
        if tree["is_offered"]:
            place = 1000 * tree["step_seconds"], tree["mean_acceptance_length"]["value"]
            axes.annotate(
                f"{tree['num_nodes']}", place, textcoords="offset points", xytext=(5, -10)
            )
    _isolines(axes, numbers)
    axes.set(xlabel="time of a step (ms)", ylabel="tokens a step, bonus included")
    axes.legend(loc="lower right")


def _isolines(axes: Any, numbers: Numbers) -> None:
    """Where plain decoding's rate and the best static tree's lie: above a line is faster."""
    high = axes.get_xlim()[1]
    limits = axes.get_ylim()
    for name, style in (("plain", ":"), ("best_static", "--")):
        rate = numbers["oracle_bounds"][name]
        label = f"{name.replace('_', ' ')}: {rate:.1f} tokens/s"
        axes.plot([0, high], [0, rate * high / 1000], style, color="#555555", lw=1, label=label)
    least = min(tree["step_seconds"] for tree in numbers["trees"])
    axes.set(xlim=(900 * least, high), ylim=limits)


def _latency(axes: Any, numbers: Numbers) -> None:
    tables = numbers["step_times"]
    for place, table in enumerate(tables):
        shade = 0.35 + 0.65 * (place + 1) / len(tables)
        rows = table["rows"]
        verify = [1000 * each for each in table["verify_seconds"]]
        label = f"verify, {table['num_tokens']} tokens of context"
        axes.plot(rows, verify, color=BLUE, alpha=shade, label=label)
        near = [one for one in numbers["timed_trees"] if _nearest(tables, one) is table]
        middle = [1000 * one["verify"]["median"] for one in near]
        below = [1000 * (one["verify"]["median"] - one["verify"]["low"]) for one in near]
        above = [1000 * (one["verify"]["high"] - one["verify"]["median"]) for one in near]
        places = [one["num_nodes"] for one in near]
        axes.errorbar(
            places, middle, [below, above], fmt=".", color=BLUE, alpha=0.5 * shade, lw=0.8
        )
    widest = tables[0]
    wide = widest["width_seconds"] or [0.0] * len(widest["rows"])
    depth = widest["draft_seconds"][-1]
    draft = [1000 * (depth + each) for each in wide]
    label = f"draft of {len(widest['draft_seconds']) - 1} levels"
    axes.plot(widest["rows"], draft, color=RED, label=label)
    axes.set(xlabel="rows (nodes, root included)", ylabel="milliseconds")
    axes.set_ylim(bottom=0)
    axes.legend()


def _batches(axes: Any, numbers: Numbers) -> None:
    """A line for each batch size; the dot is its best tree."""
    for place, one in enumerate(numbers["batches"]):
        shade = 0.35 + 0.65 * (place + 1) / len(numbers["batches"])
        rated, best = one["fastest_by_size"], one["best"]
        label = f"batch size {one['batch_size']} (nodes of the best: {best['num_nodes']})"
        axes.plot(
            [tree["num_nodes"] for tree in rated],
            [tree["tokens_per_second"] for tree in rated],
            color=BLUE,
            alpha=shade,
            label=label,
        )
        axes.plot(best["num_nodes"], best["tokens_per_second"], "o", color=RED)
    axes.set(xlabel="nodes, root included", ylabel="tokens/s of all sequences together")
    axes.set_ylim(bottom=0)
    axes.legend()


def _nearest(tables: Sequence[Numbers], timed: Numbers) -> Numbers:
    """The table of the context that a tree was timed at."""
    return min(tables, key=lambda table: abs(table["num_tokens"] - timed["context"]))


def _acceptance(axes: Any, numbers: Numbers) -> None:
    for depth, row in enumerate(numbers["acceptance_by_depth_and_rank"], start=1):
        axes.plot(range(len(row)), row, marker="o", ms=4, label=f"depth {depth}")
    axes.set(
        xlabel="rank under the head",
        ylabel="share of true tokens, given the true ones before",
        yscale="symlog",
    )
    axes.set_yscale("symlog", linthresh=0.01)
    axes.legend()


def _signals(axes: Any, numbers: Numbers) -> None:
    found = sorted(numbers["signals"], key=lambda one: one["mutual_information"])
    names = [one["name"] for one in found]
    places = range(len(found))
    axes.barh(places, [one["mutual_information"] for one in found], color=BLUE)
    for place, one in enumerate(found):
        axes.text(
            one["mutual_information"],
            place,
            f" r = {one['pearson_r']:.2f}",
            va="center",
            fontsize=7,
        )
    axes.set_yticks(places, names, fontsize=7)
    axes.set(xlabel="mutual information with the drafts accepted (nats)")
    axes.margins(x=0.12)


def _bounds(axes: Any, numbers: Numbers) -> None:
    bounds = numbers["oracle_bounds"]
    names = list(bounds)[::-1]
    colours = [
        GREY if name == "plain" else BLUE if name.endswith("_static") else GREEN for name in names
    ]
    axes.barh(range(len(names)), [bounds[name] for name in names], color=colours)
    for place, name in enumerate(names):
        axes.text(bounds[name], place, f" {bounds[name]:.1f}", va="center")
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.set(xlabel="tokens/s")
    axes.margins(x=0.1)


def _policies(axes: Any, numbers: Numbers) -> None:
    live = [(one["name"], one, RED) for one in numbers["policies"][1:]]
    simple = [
        (f"{one['name']} {one['score']}".strip(), one, GREY)
        for one in numbers["choosers"]
        if one["name"] not in ("static", "bank_this_step", "bank_perfect")
    ]
    shown = [*sorted(simple, key=lambda each: each[1]["gain"]), *live[::-1]]
    for place, (_, one, colour) in enumerate(shown):
        middle = 100 * one["gain"]
        low, high = (middle if one[end] is None else 100 * one[end] for end in ("low", "high"))
        axes.errorbar(
            middle, place, xerr=[[middle - low], [high - middle]], fmt="o", ms=4, color=colour
        )
    axes.axvline(0, color="#555555", lw=1)
    axes.set_yticks(range(len(shown)), [name for name, _, _ in shown], fontsize=7)
    axes.set(xlabel="% over the static tree, on rows it was not fitted on (95 % interval)")


def _live(axes: Any, numbers: Numbers) -> None:
    best, *others = numbers["live"]
    for place, one in enumerate(reversed(others)):
        colour = BLUE if one["policy"] == "static" else RED
        middle, low, high = (100 * one["measured"][key] - 100 for key in ("value", "low", "high"))
        axes.errorbar(
            middle,
            place,
            xerr=[[middle - low], [high - middle]],
            fmt="o",
            color=colour,
            label="measured live (95 % interval)" if place == 0 else None,
        )
        axes.plot(
            100 * one["promised"] - 100,
            place,
            "D",
            color=colour,
            fillstyle="none",
            label="promised by replay" if place == 0 else None,
        )
    axes.axvline(0, color="#555555", lw=1)
    names = [f"{finalist_name(one)} ({one['num_prompts']} prompts)" for one in reversed(others)]
    axes.set_yticks(range(len(others)), names, fontsize=8)
    axes.set(xlabel=f"% over {finalist_name(best)}, the bank's static tree")
    axes.margins(y=0.2)
    if others:
        axes.legend()


def _bias(axes: Any, numbers: Numbers) -> None:
    grown = numbers["greedy_bias"]
    deepest = max((one["depth"] for one in grown), default=0)
    some = [one for one in grown if one["depth"] == deepest]
    sizes = [one["num_nodes"] for one in some]
    for key, label, colour in (
        ("biased_mean_accepted", "the score it was grown by", RED),
        ("true_mean_accepted", "its own rollout", BLUE),
    ):
        axes.plot(sizes, [one[key] for one in some], color=colour, marker=".", label=label)
    axes.set(xlabel=f"nodes (trees {deepest} deep)", ylabel="drafts accepted a step")
    axes.legend(loc="lower right")


PICTURES: Mapping[str, Callable[[Any, Numbers], None]] = MappingProxyType(
    {
        "frontier": _frontier,
        "latency": _latency,
        "batches": _batches,
        "acceptance": _acceptance,
        "signals": _signals,
        "bounds": _bounds,
        "policies": _policies,
        "live": _live,
        "bias": _bias,
    }
)
