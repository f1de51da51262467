"""Tables of banks: what calibrations found, kinds of text, hopeless heads, cost of decisions.

Knows: what the scripts here and calibrations write. Does not know: pages.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from result_files import read


def of_calibrations() -> str:
    """What the calibrations of the shipped banks took and found."""
    rows = ["| | hydra | medusa |", "|---|---|---|"]
    found = [read(f"calibration-{heads}.json") for heads in ("hydra", "medusa")]
    for words, cell in CALIBRATIONS.items():
        rows.append(f"| {words} | {' | '.join(cell(one) for one in found)} |")
    prompts = ", ".join(str(one["made_from"]["num_prompts"]) for one in found)
    return "\n".join(rows) + f"\n\nPrompts: {prompts}.\n"


def stages_of(found: dict[str, Any]) -> str:
    seconds = found["seconds"]
    stages = ", ".join(f"{stage} {time:.0f} s" for stage, time in seconds.items())
    return f"{sum(seconds.values()) / 60:.1f} minutes ({stages})"


def halves_of(found: dict[str, Any]) -> str:
    """The best static tree of one half of the prompts, there and on the other half."""
    return "; ".join(
        f"{there['num_nodes']} nodes: {there['tokens_per_second']:.0f} expected,"
        f" {elsewhere['tokens_per_second']:.0f} found"
        for there, elsewhere in ((one["expected"], one["found"]) for one in found["best_static"])
    )


def bounds_of(found: dict[str, Any]) -> str:
    bounds = found["oracle_bounds"]
    return ", ".join(
        f"{words} {bounds[name]:.0f}"
        for name, words in (
            ("plain", "plain"),
            ("best_static", "best static tree"),
            ("bank_perfect", "perfect chooser of the bank"),
            ("fixed_size", "best nodes of one number in each step"),
            ("full", "the true path alone"),
        )
    )


def bias_of(found: dict[str, Any]) -> str:
    """The largest share by which the greedy construction's score is above the truth."""
    largest = max(
        found["greedy_bias"],
        key=lambda one: one["biased_mean_accepted"] / max(one["true_mean_accepted"], 0.1),
    )
    biased, true = largest["biased_mean_accepted"], largest["true_mean_accepted"]
    middle = median(
        one["biased_mean_accepted"] / one["true_mean_accepted"] - 1
        for one in found["greedy_bias"]
        if one["true_mean_accepted"] > 0
    )
    return (
        f"{biased:.3f} for {true:.3f} drafts at the worst, a tree of {largest['num_nodes']} nodes;"
        f" {100 * middle:+.1f} % in the middle of {len(found['greedy_bias'])} trees"
    )


def signals_of(found: dict[str, Any]) -> str:
    by_information = sorted(found["signals"], key=lambda one: -one["mutual_information"])
    some = [
        *by_information[:2],
        *(one for one in by_information if one["name"] in ("p0", "entropy")),
    ]
    return ", ".join(
        f"`{one['name']}` {one['pearson_r']:.2f} and {one['mutual_information']:.3f}"
        for one in some
    )


CALIBRATIONS = {
    "time": stages_of,
    "a static tree on the half that it was chosen on, and on the other (tokens/s)": halves_of,
    "bounds (tokens/s, replay)": bounds_of,
    "greedy construction's own score against self-rollout": bias_of,
    "signal and accepted length: r, mutual information (nats)": signals_of,
}


def of_kinds() -> str:
    """What the bank for all kinds loses to the one for the right kind, by policy."""
    policies = ("static", "throughput", "per-step")
    rows = [
        "| heads | text | " + " | ".join(f"`{name}`" for name in policies) + " |",
        "|---" * (2 + len(policies)) + "|",
    ]
    for heads in ("hydra", "medusa"):
        for kind, source in read(f"kinds-{heads}.json")["sources"].items():
            cells = [lost(source["policies"][name]) for name in policies]
            text = f"{kind}: {source['num_prompts']} of {source['file']}"
            rows.append(f"| {heads} | {text} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def lost(found: dict[str, float]) -> str:
    loss, low, high = (100 * found[name] for name in ("loss", "low", "high"))
    speeds = f"{found['tokens_per_second']:.0f} for {found['tokens_per_second_of_own']:.0f}"
    return f"{speeds}, {loss:.1f} % [{low:.1f}, {high:.1f}]"


def of_random_heads() -> str:
    content = read("random-heads.json")
    rows = ["| | over plain decoding (95 %) | behind the 64th token (95 %) |", "|---|---|---|"]
    for name, found in content["policies"].items():
        cells = [
            f"{one['middle']:.3f}x [{one['low']:.3f}, {one['high']:.3f}]"
            for one in (found["over_plain"], found["over_plain_once_settled"])
        ]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return (
        "\n".join(rows) + f"\n\n{content['num_prompts']} prompts, {content['max_tokens']} tokens.\n"
    )


def of_decisions() -> str:
    content = read("decisions.json")
    parts = ("widest", "goes_on", "choose", "step")
    rows = [
        "| | before the draft | between levels | the choice | a whole step | kept bytes a step |",
        "|---" * (2 + len(parts)) + "|",
    ]
    for name, found in content["policies"].items():
        costs = [f"{found['microseconds'][part]:.1f}" for part in parts]
        rows.append(f"| `{name}` | {' | '.join(costs)} | {found['kept_bytes']:.1f} |")
    made = content["bank"]
    sizes = ", ".join(map(str, made["offered"]))
    return (
        "\n".join(rows)
        + f"\n\n{content['num_steps']} steps of an invented stream; trees of {sizes}"
        f" nodes, and a wide tree of {made['wide_tree']}.\n"
    )
