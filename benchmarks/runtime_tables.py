"""Tables of the runtimes: steps by rows, context and company, perplexity, a larger model.

Knows: what the scripts here write of them. Does not know: pages.
"""

from __future__ import annotations

from typing import Any

from result_files import read


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


def of_floor() -> str:
    """Steps against the time to read the weights once."""
    content = read("floor.json")
    rows = list(content["runs"][0]["running"]["milliseconds"])
    lines = [
        f"| runtime and format | {' | '.join(rows)} | 8 rows ÷ 1, 16 ÷ 1 | plain step ÷ floor |",
        "|---" * (len(rows) + 3) + "|",
    ]
    for run in content["runs"]:
        steady, swept = run["running"], run["behind_a_sweep"]
        times = [
            f"{steady['milliseconds'][row]:.1f} ({swept['milliseconds'][row]:.1f})" for row in rows
        ]
        by_median = steady["milliseconds"]["1"] / run["floor_of_the_median_milliseconds"]
        ratios = steady["ratios"]
        lines.append(
            f"| {run['run'].replace(':', ', ')} | {' | '.join(times)} |"
            f" {ratios['rows_8_over_1']:.2f}, {ratios['rows_16_over_1']:.2f} |"
            f" {ratios['plain_over_floor']:.2f}, by the median sweep {by_median:.2f} |"
        )
    best, median = (
        content["bandwidth"][f"{which}_bytes_per_second"] / 1e9 for which in ("best", "median")
    )
    floors = ", ".join(
        f"{run['floor_milliseconds']:.1f} ms in {run['run'].split(':')[1]}"
        for run in content["runs"][:2]
    )
    return "\n".join(lines) + (
        f"\n\nThe floor is the time to read every weight once, {floors}, at the best bandwidth of"
        f" the same run ({best:.1f} GB/s; of the median sweep {median:.1f}).\n"
    )


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
