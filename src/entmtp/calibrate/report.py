"""A page about a calibration that stands alone, and its numbers beside it.

Knows: numbers and pictures. Does not know: how they were found.
"""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from entmtp.calibrate.files import write_json
from entmtp.calibrate.live_numbers import finalist_name
from entmtp.calibrate.pictures import draw
from entmtp.data.whole import whole
from entmtp.errors import BadInput

PAGE_NAME = "calibration.html"
TEXTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "frontier": (
            "What trees accept, and what their steps take",
            "Each point is a tree. The slope of a line from the origin is a rate: a tree above the"
            " dashed line would be faster than the bank's static one, if prediction is right.",
        ),
        "latency": (
            "How long steps take here",
            "Medians with quartiles; the lines are the monotone model that policies look up.",
        ),
        "batches": (
            "The best tree by batch size",
            "Tokens a second of all sequences that step together, as predicted from step times of"
            " each batch size, with the fastest tree of each number of nodes. Red: the best static"
            " tree, a larger one only where it is surely faster; with one sequence, by the clock.",
        ),
        "acceptance": (
            "Acceptance by depth and rank",
            "How often the true token had this rank under the head of this depth.",
        ),
        "signals": (
            "What signals say of acceptance",
            "Mutual information and Pearson's r between what is known before verification and the"
            " drafts that the largest offered tree accepts.",
        ),
        "bounds": (
            "What any scheduler could reach",
            "From plain decoding to choosers that know the future. Best static is the bank's own"
            " tree; fastest static the fastest candidate on these prompts, however few they are.",
        ),
        "policies": (
            "Policies against the best static tree",
            "Fitted on one half of the prompts, judged on the other, and the other way round. Red:"
            " policies as they run, their own time counted, against the static tree of the half's"
            " bank. Grey: the simple choosers by score, against the tree that is fastest there.",
        ),
        "live": (
            "Promised by replay, measured live",
            "Finalists on prompts that they were not fitted on, every prompt by every one in turn,"
            " beside the bank's static tree. Static trees ran on prompts of their own, by which"
            " that one was chosen: the smallest that none was surely faster than. So another may"
            " have been faster there. Policies ran on the other prompts.",
        ),
        "bias": (
            "The bias of the greedy construction",
            "The score that each tree of the paper's construction was grown by, beside what a"
            " rollout of its own accepts.",
        ),
    }
)


def check_place(place: Path, bank: Path) -> Path:
    """The page's file for `--report`: itself if it ends in .html, else one in that folder.

    A folder that is there is a folder, whatever its name.

    Raises:
        BadInput: it ends in something else, is a file where a folder is needed, or the page or its
            numbers would lie where the bank does.
    """
    is_page = place.suffix == ".html" and not place.is_dir()
    if place.suffix and not is_page and not place.is_dir():
        raise BadInput(f"the report {place} ends in {place.suffix}; give a folder or a name.html")
    if place.exists() and not place.is_dir() and not is_page:
        raise BadInput(f"the report {place} is a file; give a folder or a name.html")
    page = place if is_page else place / PAGE_NAME
    if page.resolve() == bank.resolve():
        raise BadInput(
            f"the report {page} would be written over the bank {bank}; give one of them another"
            " name"
        )
    if page.with_suffix(".json").resolve() == bank.resolve():
        raise BadInput(
            f"the report {page} would write its numbers over the bank {bank}; give one of them"
            " another name"
        )
    return page


def write_report(numbers: Mapping[str, Any], page: Path) -> None:
    """Write the page, and its numbers as JSON beside it, each whole or not at all."""
    page.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(_page(numbers))
    write_json(page.with_suffix(".json"), numbers)
    with whole(page) as half:
        half.write_text(text, encoding="utf-8")


def _page(numbers: Mapping[str, Any]) -> Iterator[str]:
    yield (
        "<!doctype html><meta charset=utf-8><title>Calibration</title>"
        "<style>body{font:15px/1.5 sans-serif;max-width:54em;margin:2em auto;padding:0 1em}"
        "img{max-width:100%}td,th{padding:.15em .8em;text-align:right}"
        "td:first-child,th:first-child{text-align:left}pre{overflow-x:auto}</style>"
        f"<h1>Calibration</h1><p>{html.escape(_summary(numbers))}"
    )
    yield _table(
        ["tree", "depth", "tokens a step", "tokens/s", "bank"],
        [
            [
                tree["num_nodes"],
                tree["depth"],
                _interval(tree["mean_acceptance_length"], 3),
                _interval(tree["tokens_per_second"], 1),
                "static" if tree["is_chosen"] else "offered",
            ]
            for tree in numbers["trees"]
            if tree["is_chosen"] or tree["is_offered"]
        ],
    )
    yield _batch_table(numbers)
    yield _policy_table(numbers)
    yield _live_table(numbers)
    for name, (title, text) in TEXTS.items():
        if name == "live" and not numbers["live"]:
            continue
        picture = base64.b64encode(draw(name, numbers)).decode()
        yield (
            f"<h2>{html.escape(title)}</h2><p>{html.escape(text)}"
            f'<p><img alt="{html.escape(title)}" src="data:image/png;base64,{picture}">'
        )
    shown = {
        key: numbers[key]
        for key in ("made_for", "made_from", "machine", "ladder", "hysteresis", "sizes", "rates")
    }
    details = html.escape(json.dumps(shown, indent=1))
    yield f"<h2>Made for, made from, and parameters</h2><pre>{details}</pre>\n"


def _summary(numbers: Mapping[str, Any]) -> str:
    origin, bounds = numbers["made_from"], numbers["oracle_bounds"]
    return (
        f"{origin['num_prompts']} prompts ({', '.join(origin['kinds'])}), temperature"
        f" {origin['temperature']:g}, seed {origin['seed']}. Predicted tokens/s: plain"
        f" {bounds['plain']:.1f}, the bank's static tree (nodes: {numbers['static_num_nodes']})"
        f" {bounds['best_static']:.1f}, a perfect chooser among that and the offered trees"
        f" {bounds['bank_perfect']:.1f}. {_given_up(numbers)}Recommended policy:"
        f" {numbers['recommended']}."
    )


def _given_up(numbers: Mapping[str, Any]) -> str:
    words = given_up(numbers["oracle_bounds"], numbers["fastest_static_num_nodes"])
    return f"{words[:1].upper()}{words[1:]}. " if words else ""


def given_up(bounds: Mapping[str, float], num_nodes: int) -> str:
    """What the bank's static tree is predicted to bring less than the fastest candidate, in words.

    Nothing where it is that one.

    Args:
        num_nodes: of the fastest candidate.
    """
    gain = bounds["fastest_static"] / bounds["best_static"] - 1
    if gain < 5e-4:
        return ""
    return (
        f"the fastest candidate on these prompts (nodes: {num_nodes}) is predicted to bring"
        f" {bounds['fastest_static']:.1f}, {100 * gain:.1f} % more than the bank's static tree; a"
        " bank takes only what is surely faster, and more prompts make surer"
    )


def _batch_table(numbers: Mapping[str, Any]) -> str:
    rows = [
        [
            one["batch_size"],
            one["best"]["num_nodes"],
            one["best"]["depth"],
            f"{one['best']['tokens_per_second']:.1f}",
            f"{one['fastest_by_size'][0]['tokens_per_second']:.1f}",
        ]
        for one in numbers["batches"]
    ]
    heads = ["batch size", "nodes of the best tree", "depth", "tokens/s together", "plain"]
    return _table(heads, rows)


def _policy_table(numbers: Mapping[str, Any]) -> str:
    rows = [
        [
            one["name"],
            f"{one['tokens_per_second']:.1f}",
            f"{one['mean_acceptance_length']:.3f}",
            f"{100 * one['gain']:+.1f}",
            "" if one["low"] is None else f"{100 * one['low']:+.1f} to {100 * one['high']:+.1f}",
            f"{1e6 * one['seconds_to_choose']:.0f}",
        ]
        for one in numbers["policies"]
    ]
    heads = ["policy", "tokens/s", "tokens a step", "% over static", "95 %", "µs to choose"]
    return _table(heads, rows)


def _live_table(numbers: Mapping[str, Any]) -> str:
    if not numbers["live"]:
        return "<p>Nothing was run live, so no policy is recommended."
    rows = [
        [
            finalist_name(one),
            f"{100 * one['promised'] - 100:+.1f}",
            f"{100 * one['measured']['value'] - 100:+.1f}",
            f"{100 * one['measured']['low'] - 100:+.1f} to"
            f" {100 * one['measured']['high'] - 100:+.1f}",
            str(one["num_prompts"]),
        ]
        for one in numbers["live"][1:]
    ]
    best = finalist_name(numbers["live"][0])
    heads = [f"over {best}", "% promised by replay", "% measured live", "95 %", "prompts"]
    return _table(heads, rows)


def _interval(figure: Mapping[str, float], digits: int) -> str:
    value, low, high = (f"{figure[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _table(heads: list[str], rows: list[list[object]] | list[list[str]]) -> str:
    def row(tag: str, cells: list[object] | list[str]) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)

    body = "".join(row("td", list(cells)) for cells in rows)
    return f"<table>{row('th', list(heads))}{body}</table>"
