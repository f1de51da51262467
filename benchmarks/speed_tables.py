"""Tables of the methods: speed, tokens a step, identity, and the paper's figures beside ours.

Knows: what `entmtp bench` and `demo` write. Does not know: pages.
"""

from __future__ import annotations

from math import log
from typing import Any

import result_files
from result_files import BATCH, read

from entmtp.measure.statistics import geometric_mean_interval

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

GOAL = 1.6
"""Times plain decoding's speed, which issue 4 asks of Hydra's best static tree"""
PAPER = {
    "hydra-default": ("Hydra, Medusa's tree of 63", "1.14x, -, 1.08x"),
    "medusa-default": ("Medusa, the same tree", "up to 1.36x"),
    "plain": ("plain decoding", "3.26x, 3.13x, 3.47x"),
    "hydra-best": ("the best static tree (EntMTP\\*)", "1.005x to 1.021x"),
}
"""What EntMTP-tau is compared with, and what arXiv 2606.27550 tells of it"""


def speed_table(name: str) -> str:
    """The methods of one run of `entmtp bench`."""
    content = read(name)
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


def bfloat16_in_short() -> str:
    """What the first table's reader should know of the other format."""
    methods = {one["name"]: one for one in read("speed-bfloat16-native.json")["methods"]}
    tau = methods["entmtp-tau"]
    return (
        "\nWith `--dtype bfloat16`, in the checkpoint's own numbers, the best static tree is"
        f" {times(methods['hydra-best'], 'speedup')} of plain decoding and EntMTP-tau"
        f" {times(tau, 'speedup')} ([that table](#figures)), identical in"
        f" {tau['num_identical']} of {tau['num_prompts']}.\n"
    )


def setting(content: dict[str, Any]) -> str:
    machine, settings = content["environment"], content["settings"]
    return (
        f"SmolLM2-135M on {machine['num_threads']} CPU cores ({machine['processor']}),"
        f" {machine['dtype']} on {machine['runtime']}, {settings['num_prompts']} prompts of"
        f" HumanEval, GSM8K and MT-bench, {settings['max_tokens']} tokens, greedy;"
        f" {settings['order'].partition(';')[0].partition(', the first')[0]}."
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
    if (result_files.RESULTS / BATCH).is_file():  # it takes a quieter machine than the others
        lines += ["", of_a_batch(read(BATCH))]
    return "\n".join(lines) + "\n"


def identity_in_16_bits(speed: dict[str, Any], padded: dict[str, Any]) -> str:
    counts = ", ".join(
        f"{m['num_identical']} of {m['num_prompts']} with {NAMES[m['name']]}"
        for m in speed["methods"]
        if m["name"] != "plain"
    )
    ratios = [d["ratio"] for d in speed["differences"] + padded["differences"]]
    hydra = next(m for m in padded["methods"] if m["name"] == "hydra-best")
    return (
        f"Bfloat16 with PyTorch as it comes (logits in float32): identical are {counts}; with plain"
        f" decoding padded to the tree's rows {hydra['num_identical']} of {hydra['num_prompts']}"
        " with Hydra++. At every first difference the gap between the two tokens is"
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
    return f"A step there: {parts}."


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


def of_methods(name: str) -> str:
    """Every method against the best static tree of the same heads, by source, and its time."""
    content = read(name)
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


def of_milliseconds() -> str:
    """Where the time of a step goes, and what stands between it and a goal."""
    rows = [
        "| format | | a step (ms) | verify, draft, host | tokens a step | over plain decoding |"
        f" tokens a step for {GOAL}x | rows for nothing | drafts, too |",
        "|---" * 9 + "|",
    ]
    for name in ("speed-int8.json", "speed-bfloat16-native.json"):
        content = read(name)
        methods = {method["name"]: method for method in content["methods"]}
        plain = methods["plain"]
        for method in (plain, methods["medusa-best"], methods["hydra-best"]):
            step, verify = method["step_milliseconds"], method["verify_milliseconds"]
            length = method["mean_acceptance_length"]
            gain = length * plain["step_milliseconds"]
            lean = step - verify + plain["verify_milliseconds"]
            cells = [
                content["environment"]["dtype"],
                NAMES[method["name"]],
                f"{step:.1f}",
                f"{verify:.1f}, {method['draft_milliseconds']:.1f},"
                f" {method['host_milliseconds']:.1f}",
                f"{length:.2f}",
                f"{gain / step:.2f}x",
                f"{GOAL * step / plain['step_milliseconds']:.2f}",
                f"{gain / lean:.2f}x",
                f"{gain / (lean - method['draft_milliseconds']):.2f}x",
            ]
            if method is plain:
                cells[5:] = ["-"] * 4
            rows.append(f"| {' | '.join(cells)} |")
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
