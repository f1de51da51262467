"""Write the figures of `results/` into the README and the docs, between their markers.

.venv/bin/python benchmarks/readme.py           (a test compares, so that they stay true)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from math import log
from pathlib import Path
from statistics import median
from typing import Any

from remedy_tables import (
    of_openvino,
    of_priors,
    of_promises,
    of_remedies,
    of_signals,
    of_sizes,
)

from entmtp.measure.statistics import geometric_mean_interval

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BANKS = ROOT / "src" / "entmtp" / "heads" / "packaged" / "hydra"
BATCH = "batch-int8.json"
REMEDIES = "remedies.json"
NAMES = {
    "plain": "plain decoding",
    "medusa-default": "Medusa heads, their default tree of 63",
    "medusa-best": "Medusa heads, best static tree",
    "hydra-default": "Hydra++ heads, that same default tree",
    "hydra-best": "Hydra++ heads, best static tree",
    "entmtp-ladder": "Hydra++, EntMTP-l",
    "entmtp-tau": "Hydra++, EntMTP-tau",
    "entmtp-throughput": "Hydra++, `throughput`",
    "entmtp-per-step": "Hydra++, `per-step`",
}

PAPER = {
    "hydra-default": ("Hydra, Medusa's tree of 63", "1.14x, -, 1.08x"),
    "medusa-default": ("Medusa, the same tree", "up to 1.36x"),
    "plain": ("plain decoding", "3.26x, 3.13x, 3.47x"),
    "hydra-best": ("the best static tree (EntMTP\\*)", "1.005x to 1.021x"),
}
"""What EntMTP-tau is compared with, and what arXiv 2606.27550 tells of it"""


def main() -> None:
    for page in pages():
        path = ROOT / page
        path.write_text(filled(page, path.read_text(encoding="utf-8")), encoding="utf-8")


def pages() -> dict[str, dict[str, Callable[[], str]]]:
    """What stands between which markers of which page."""
    return {
        "README.md": {"table": speed_table, "figures": figures},
        "docs/calibrate.md": {"calibrations": of_calibrations},
        "docs/runtimes.md": {
            "steps": of_runtimes,
            "company": of_context_and_batch,
            "qwen": of_qwen,
        },
        "docs/scheduler.md": {
            "methods": of_methods,
            "sizes": lambda: of_sizes(bank("bank.json")),
            "remedies": lambda: of_remedies(read(REMEDIES)),
            "signals": lambda: of_signals(read(REMEDIES)),
            "priors": lambda: of_priors(read(REMEDIES)),
            "promises": lambda: of_promises(read(REMEDIES)),
            "openvino": lambda: of_openvino(
                read("speed-int8-openvino.json"), bank("bank-openvino.json")
            ),
            "paper": beside_the_paper,
            "kinds": of_kinds,
            "random": of_random_heads,
            "decisions": of_decisions,
        },
    }


def filled(page: str, text: str) -> str:
    """A page's text with today's figures."""
    for marker, block in pages()[page].items():
        start, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
        before, rest = text.split(start)
        after = rest.split(end)[1]
        text = f"{before}{start}{block()}{end}{after}"
    return text


def read(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return content


def bank(name: str) -> dict[str, Any]:
    """A shipped bank of Hydra++ heads."""
    content: dict[str, Any] = json.loads((BANKS / name).read_text(encoding="utf-8"))
    return content


def speed_table() -> str:
    content = read("speed-int8.json")
    rows = [
        "| | tokens/s | speed-up (95 %) | tokens a step | identical |",
        "|---|---|---|---|---|",
    ]
    for method in content["methods"]:
        rows.append(
            f"| {NAMES[method['name']]} | {method['tokens_per_second']:.1f} |"
            f" {times(method, 'speedup')} | {method['mean_acceptance_length']:.2f} |"
            f" {method['num_identical']} of {method['num_prompts']} |"
        )
    return "\n".join(rows) + f"\n\n{setting(content)}\n"


def setting(content: dict[str, Any]) -> str:
    machine, settings = content["environment"], content["settings"]
    return (
        f"SmolLM2-135M on {machine['num_threads']} CPU cores ({machine['processor']}),"
        f" {machine['dtype']} on {machine['runtime']}, {settings['num_prompts']} prompts of"
        f" HumanEval, GSM8K and MT-bench, {settings['max_tokens']} tokens, greedy; every prompt by"
        " all methods in turn."
    )


def times(method: dict[str, Any], figure: str) -> str:
    """A ratio to plain decoding with its interval; plain decoding's own is 1."""
    if method["name"] == "plain":
        return "1.00x"
    return f"{method[figure]:.2f}x [{method[f'{figure}_low']:.2f}, {method[f'{figure}_high']:.2f}]"


def figures() -> str:
    speed, padded, identity = (
        read(f"{name}.json") for name in ("speed-bfloat16", "padded-bfloat16", "identity-float32")
    )
    prompts = identity["rows"][0]["num_prompts"]
    lines = [
        f"Float32, the same {prompts} prompts with every tree below: all identical to plain"
        " decoding, token for token. Tokens a step (mean acceptance length, bonus token included):",
        "",
        "| heads | nodes of the tree, root included | tokens a step | identical |",
        "|---|---|---|---|",
        *(
            f"| {row['heads']} | {row['num_nodes']} | {row['mean_acceptance_length']:.2f} |"
            f" {row['num_identical']} of {prompts} |"
            for row in identity["rows"]
        ),
    ]
    lines += ["", identity_in_16_bits(speed, padded), "", time_of_a_step(speed)]
    if (RESULTS / BATCH).is_file():  # it takes a quieter machine than the others
        lines += ["", of_a_batch(read(BATCH))]
    return "\n".join(lines) + "\n"


def of_methods() -> str:
    """Every method against the best static tree of the same heads, by source, and its time."""
    content = read("speed-int8.json")
    sources = [source["name"] for source in content["sources"]]
    rows = [
        "| | against `hydra-best` (95 %) | tokens a step | draft, verify, host (ms a step) |"
        f" {' | '.join(sources)} |",
        "|---" * (4 + len(sources)) + "|",
    ]
    for method in content["methods"]:
        rows.append(
            f"| `{method['name']}` | {against(method)} | {method['mean_acceptance_length']:.2f} |"
            f" {method['draft_milliseconds']:.1f}, {method['verify_milliseconds']:.1f},"
            f" {method['host_milliseconds']:.1f} | {' | '.join(by_source(content, method))} |"
        )
    return "\n".join(rows) + f"\n\nBy source: speed-up over plain decoding. {setting(content)}\n"


def against(method: dict[str, Any]) -> str:
    """A method's tokens a second over those of the best static tree, with the interval."""
    ratio = method["against_hydra_best"]
    if method["name"] == "hydra-best":
        return "1.00x"
    return f"{ratio['ratio']:.3f}x [{ratio['ratio_low']:.3f}, {ratio['ratio_high']:.3f}]"


def by_source(content: dict[str, Any], method: dict[str, Any]) -> list[str]:
    speedups = []
    for source in content["sources"]:
        (own,) = (one for one in source["methods"] if one["name"] == method["name"])
        speedups.append(f"{own['speedup']:.2f}x")
    return speedups


def beside_the_paper() -> str:
    """The paper's figures and ours for the same quantities."""
    content = read("speed-int8.json")
    rows = [
        "| EntMTP-tau over | the paper | here |",
        "|---|---|---|",
        "| | HumanEval, GSM8K, ShareGPT | HumanEval, GSM8K, MT-bench |",
    ]
    for name, (words, told) in PAPER.items():
        cells = ", ".join(ratio_by_source(content["runs"], "entmtp-tau", name))
        rows.append(f"| {words} | {told} | {cells} |")
    tau = next(m for m in content["methods"] if m["name"] == "entmtp-tau")
    change = log(tau["perplexity_ratio"])
    rows.append(f"| plain decoding, in perplexity | within 0.02 nats | {change:.3f} nats |")
    return "\n".join(rows) + "\n"


def ratio_by_source(runs: list[dict[str, Any]], method: str, other: str) -> list[str]:
    """Speed of one method over another's, prompt by prompt, of each source."""
    seconds = {
        name: {run["prompt_id"]: run["seconds"] for run in runs if run["method"] == name}
        for name in (method, other)
    }
    ratios: dict[str, list[float]] = {}
    for prompt, time in seconds[method].items():
        ratios.setdefault(prompt.partition("/")[0], []).append(seconds[other][prompt] / time)
    found = [geometric_mean_interval(some) for some in ratios.values()]
    return [f"{one.middle:.2f}x [{one.low:.2f}, {one.high:.2f}]" for one in found]


def of_runtimes() -> str:
    quiet, busy = read("runtime-steps.json"), read("runtime-steps-busy.json")
    costs = read("perplexity.json")
    lines = [*steps_table(quiet), "", "The same beside a process that keeps one core busy:", ""]
    lines += [
        *steps_table(busy)[2:],
        "",
        "| runtime and format | perplexity | ratio (95 %) | divergence | same likeliest |",
    ]
    lines.append("|---|---|---|---|---|")
    for run in costs["runs"]:
        lines.append(
            f"| {run['run'].replace(':', ', ')} | {run['perplexity']:.2f} | {run['ratio']:.4f}"
            f" [{run['ratio_low']:.4f}, {run['ratio_high']:.4f}] | {run['divergence']:.4f} |"
            f" {100 * run['agreement']:.1f} % |"
        )
    lines.append(
        f"\nPerplexity of SmolLM2-135M on {costs['num_texts']} prompts of"
        f" {', '.join(costs['texts'])} ({costs['num_tokens']} tokens), which are not ours."
        " Divergence: of the next token's distribution from that of the first row, in nats a token."
    )
    return "\n".join(lines) + "\n"


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


def of_context_and_batch() -> str:
    content = read("context-and-batch.json")
    lines = []
    for name, key, words in (
        ("contexts", "context", "A step (ms) of one sequence by committed tokens:"),
        ("batches", "batch", f"By sequences, {content['batch_context']} committed tokens each:"),
    ):
        places = content[name]
        head = " | ".join(str(place[key]) for place in places)
        lines += [
            words,
            "",
            f"| runtime and format, rows | {head} |",
            "|---" * (len(places) + 1) + "|",
        ]
        for run in places[0]["milliseconds"]:
            for kind, num_rows in content["num_nodes"].items():
                cells = " | ".join(f"{place['milliseconds'][run][kind]:.1f}" for place in places)
                lines.append(f"| {run.replace(':', ', ')}, {num_rows} | {cells} |")
            memory = " | ".join(f"{place['cache_bytes'][run] / 2**20:.0f} MiB" for place in places)
            lines.append(f"| {run.replace(':', ', ')}, its cache | {memory} |")
        lines.append("")
    gains = content["throughput_over_first_batch"]
    at_eight = [place["batch"] for place in content["batches"]].index(8)
    ratios = "; ".join(
        f"{run.replace(':', ', ')}: "
        + ", ".join(
            f"{kinds[kind][at_eight]:.2f}x with {content['num_nodes'][kind]}" for kind in kinds
        )
        for run, kinds in gains.items()
    )
    lines.append(f"Steps a second of 8 sequences over those of one, by rows of each: {ratios}.")
    return "\n".join(lines) + "\n"


def of_qwen() -> str:
    content = read("qwen.json")
    rows = list(content["runs"][0]["wall_ms"])
    lines = [
        f"| runtime and format | {' | '.join(rows)} | plain | tree | llama.cpp |"
        " plain over llama.cpp | tokens a step to equal plain, llama.cpp |",
        "|---" * (len(rows) + 6) + "|",
    ]
    for run in content["runs"]:
        steps, ratio = run["step_milliseconds"], run["plain over llama.cpp"]
        equal = run["acceptance_length_to_equal"]
        times = [*run["wall_ms"].values(), steps["plain"], *list(steps.values())[1:]]
        lines.append(
            f"| {run['run'].replace(':', ', ')} | {' | '.join(f'{time:.0f}' for time in times)} |"
            f" {ratio['geometric_mean']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}] |"
            f" {', '.join(f'{length:.2f}' for length in equal.values())} |"
        )
    nodes = content["runs"][0]["num_nodes"]
    settings = content["settings"]
    return "\n".join(lines) + (
        f"\n\nQwen2.5-Coder-0.5B: a step (ms) by rows, {settings['context']} tokens of context;"
        f" then whole steps of plain decoding, of a tree of {nodes} nodes with **random** heads"
        " (times only) and of llama.cpp plainly with the file's 4-bit weights, prompts in turn.\n"
    )


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


def identity_in_16_bits(speed: dict[str, Any], padded: dict[str, Any]) -> str:
    counts = ", ".join(
        f"{m['num_identical']} of {m['num_prompts']} with {NAMES[m['name']]}"
        for m in speed["methods"]
        if m["name"] != "plain"
    )
    ratios = [d["ratio"] for d in speed["differences"] + padded["differences"]]
    hydra = next(m for m in padded["methods"] if m["name"] == "hydra-best")
    return (
        f"Bfloat16 (logits in float32): identical are {counts}; with plain decoding padded to the"
        f" tree's rows {hydra['num_identical']} of {hydra['num_prompts']} with Hydra++. At every"
        " first difference the gap between the two tokens is"
        f" at most {max(ratios, default=0.0):.2f} times the rounding error there (up to 2 it is"
        " rounding)."
    )


def time_of_a_step(speed: dict[str, Any]) -> str:
    parts = "; ".join(
        f"{m['name']} {m['step_milliseconds']:.0f} ms (draft {100 * m['draft_share']:.0f} %, verify"
        f" {100 * m['verify_share']:.0f} %, host {100 * m['host_share']:.1f} %, {m['num_nodes']}"
        " rows)"
        for m in speed["methods"]
    )
    return f"A step: {parts}."


def of_a_batch(content: dict[str, Any]) -> str:
    settings = content["settings"]
    ratios = ", ".join(
        f"{m['ratio']['median']:.2f}x [{m['ratio']['low']:.2f}, {m['ratio']['high']:.2f}] with"
        f" {NAMES[m['name']]} ({m['together_tokens_per_second']['median']:.1f} tokens/s)"
        for m in content["methods"]
    )
    return (
        f"{settings['together']} sequences together against 1 at a time, total tokens/s with"
        f" prefill, {settings['max_tokens']} tokens each: {ratios}."
    )


def steps_table(content: dict[str, Any]) -> list[str]:
    rows = list(content["steps"][0]["wall_ms"])
    return [
        "The target's share of a step (ms) by the rows that it verifies at once,"
        f" {content['context']} tokens of context:",
        "",
        f"| runtime and format | {' | '.join(rows)} |",
        "|---" * (len(rows) + 1) + "|",
        *(
            f"| {step['run'].replace(':', ', ')} |"
            + "".join(f" {step['wall_ms'][row]:.0f} |" for row in rows)
            for step in content["steps"]
        ),
    ]


if __name__ == "__main__":
    main()
