"""The tables of `docs/scheduler.md` on what `throughput` brings, most of them of `remedies.json`.

Knows: what stands in results and banks. Does not know: where they lie, pages.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
SIGNALS = ("p0", "entropy", "accepted", "g1", "g2", "g3", "g4", "sum_g", "sum_tree")
"""Those that are shown, and all blends"""
BLEND = "blend"
PARTS = ("draft", "verify", "host")


def of_remedies(content: Row) -> str:
    """Every variant: what replay promises, and what came."""
    rows = [
        "| | cause | what is different | replay promises (95 %) | of the gap |"
        " live, behind the first token (95 %) | of the gap | live, whole answers (95 %) |",
        "|---" * 8 + "|",
    ]
    for row in content["variants"]:
        if row["name"] == "static":
            continue  # the others are measured against it
        replay, live = row["replay"], row["live"]
        rows.append(
            f"| `{row['name']}` | {row['cause']} | {row['words']} | {promised(replay)} |"
            f" {percent(replay['gap_share'])} | {ratio(live, 'decode_ratio')} |"
            f" {percent(live['gap_share'])} | {ratio(live, 'ratio')} |"
        )
    return "\n".join(
        [*rows, "", bounds_line(content), "", over_line(content), "", setting(content)]
    )


def promised(found: Row) -> str:
    """A replay's gain as a ratio, with its interval where there are rows enough for one."""
    middle = f"{1 + found['gain']:.3f}x"
    if found["low"] is None:
        return middle
    return f"{middle} [{1 + found['low']:.3f}, {1 + found['high']:.3f}]"


def ratio(found: Row, name: str) -> str:
    ends = [found[f"{name}{end}"] for end in ("", "_low", "_high")]
    if ends[0] is None:
        return "-"
    if ends[1] is None:
        return f"{ends[0]:.3f}x"
    return f"{ends[0]:.3f}x [{ends[1]:.3f}, {ends[2]:.3f}]"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def bounds_line(content: Row) -> str:
    """The bank's perfect chooser, on these prompts."""
    table, own = (content["bounds"][name] for name in ("bank_times", "own_times"))
    again = next(r for r in content["variants"] if r["name"] == "throughput")["replay_by_own_times"]
    return (
        "The gap: the bank's perfect chooser, which knows all that will come, reaches"
        f" {1 + table['bank_perfect']['gain']:.2f}x by replay of these prompts, one that knows this"
        f" step only {1 + table['bank_this_step']['gain']:.2f}x. Priced with the step times of this"
        f" run, the perfect one reaches {1 + own['bank_perfect']['gain']:.2f}x and `throughput`"
        f" {promised(again)}."
    )


def over_line(content: Row) -> str:
    """`throughput` against its rivals, prompt by prompt."""
    cells = [
        f"{ratio(found, 'ratio')} of `{name}`" for name, found in content["throughput_over"].items()
    ]
    return f"`throughput` live, whole answers of the same prompts: {'; '.join(cells)}."


def setting(content: Row) -> str:
    machine, settings = content["environment"], content["settings"]
    loads = " and ".join(map(str, content["load_average"]))
    count = content["num_prompts"]
    return (
        f"{settings['model']} on {machine['num_threads']} CPU cores ({machine['processor']}),"
        f" {machine['dtype']} on {machine['runtime']}, {count} prompts of"
        f" {', '.join(settings['source'])}, {settings['max_tokens']} tokens, greedy; every prompt"
        f" by all of them in turn, load average {loads} before and after. Of each one's {count}"
        f" answers {least(content, 'live', 'num_identical')} or more are plain decoding's, and"
        f" {least(content, 'steps', 'num_as_replayed')} or more have as many steps as by replay.\n"
    )


def least(content: Row, part: str, name: str) -> int:
    return min(int(row[part][name]) for row in content["variants"])


def of_sizes(bank: Row) -> str:
    """How much slower the best tree of each size is than the best of all, by calibration."""
    best: dict[int, float] = {}
    for entry, rate in zip(bank["trees"], bank["timing"]["tokens_per_second"], strict=True):
        size = 1 + len(entry["tree"])
        best[size] = max(best.get(size, 0.0), rate["value"])
    most = max(best.values())
    rows = [f"| nodes | {' | '.join(map(str, best))} |", "|---" * (1 + len(best)) + "|"]
    rows.append(f"| tokens/s | {' | '.join(f'{rate:.0f}' for rate in best.values())} |")
    cells = " | ".join(f"{rate / most:.3f}x" for rate in best.values())
    return "\n".join([*rows, f"| of the most | {cells} |"]) + "\n"


def of_openvino(content: Row, bank: Row) -> str:
    """The methods of a bank where plain steps are dearer and a switch of sizes has a price."""
    methods = {row["name"]: row for row in content["methods"]}
    cells = [
        f"`{name}` {ratio(row['against_hydra_best'], 'ratio')}"
        for name, row in methods.items()
        if name.startswith("entmtp-")
    ]
    static = f"{methods['hydra-best']['speedup']:.2f}x"
    return (
        f"`hydra-best` is {static} of plain decoding there, and of `hydra-best` are"
        f" {', '.join(cells)} ({content['settings']['num_prompts']} prompts). {switch_line(bank)}\n"
    )


def switch_line(bank: Row) -> str:
    """What a switch takes, at the shortest measured context."""
    times = bank["timing"]["step_times"][0]["times"]
    plain = times["verify_seconds"][0] + times["host_seconds"]
    return (
        f"By that run's bank a plain step takes {1e3 * plain:.1f} ms, and one of"
        f" another size than the last {1e3 * times['switch_seconds']:.2f} ms more than one of the"
        " same."
    )


def of_signals(content: Row) -> str:
    """What each score knows, and what it could bring alone."""
    signals, alone = content["signals"], content["by_score"]
    known = {row["name"]: row for row in signals["scores"]}
    rows = [
        "| score | levels drafted | r with accepted | knows of accepted (nats) |"
        " knows of the perfect choice (nats) | alone, by replay |"
        " the same, looks and switches free |",
        "|---" * 7 + "|",
    ]
    for name, row in known.items():
        if name in SIGNALS or name.startswith(BLEND):
            rows.append(
                f"| `{name}` | {row['levels']} | {row['pearson_r']:.2f} |"
                f" {row['mutual_information']:.3f} | {row['mutual_information_of_choice']:.3f} |"
                f" {gained(alone, name, 'priced')} | {gained(alone, name, 'free')} |"
            )
    return "\n".join(rows) + (
        f"\n\nThere are {signals['entropy_of_accepted']:.2f} nats to know of what the best static"
        f" tree accepts in its {signals['num_steps']} steps, and"
        f" {signals['entropy_of_choice']:.2f} of what the perfect chooser takes there. `blendD` is"
        " all scores in one that need no more than D levels, a number for each bin of each, fitted"
        f" on the {content['bank']['num_calibration_prompts']} calibration prompts.\n"
    )


def of_priors(content: Row) -> str:
    """What each speed of adaptation promises, on calibration prompts alone."""
    rows = content["by_prior"]
    priors = list(dict.fromkeys(row["prior"] for row in rows))
    heads = ["off" if prior is None else f"{prior:.0f}" for prior in priors]
    lines = [
        f"| before drafting it looks at | {' | '.join(heads)} |",
        "|---" * (1 + len(heads)) + "|",
    ]
    for before in dict.fromkeys(row["before"] for row in rows):
        cells = [f"{1 + row['gain']:.3f}x" for row in rows if row["before"] == before]
        lines.append(f"| {'nothing' if before is None else f'`{before}`'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gained(alone: Row, name: str, price: str) -> str:
    return promised(alone[name][price]) if name in alone else "-"


def of_promises(content: Row) -> str:
    """Where a promise goes: each variant's step by the clock and by the table."""
    variants = {row["name"]: row["steps"] for row in content["variants"]}
    static = variants["static"]
    rows = [
        "| | steps of another size than the last | live: draft, verify, host (ms) | table: draft,"
        " verify, host, looks, switches (ms) | step over the static tree's: table, live | lost in"
        " draft, verify, host (% of its step) |",
        "|---" * 6 + "|",
    ]
    for name, steps in variants.items():
        live = by_part(steps)[0]
        charged = steps["table_milliseconds"]
        over = [sum(one.values()) / sum(base.values()) for one, base in both(steps, static)]
        lost = ", ".join(f"{100 * part:+.1f}" for part in losses(steps, static))
        rows.append(
            f"| `{name}` | {percent(steps['num_switches'] / max(steps['num_steps'], 1))} |"
            f" {', '.join(f'{live[part]:.2f}' for part in PARTS)} |"
            f" {', '.join(f'{one:.2f}' for one in charged.values())} |"
            f" {over[1]:.3f}, {over[0]:.3f} | {lost} |"
        )
    return "\n".join(rows) + "\n"


def by_part(steps: Row) -> tuple[dict[str, float], dict[str, float]]:
    """Milliseconds live and by the table, in the parts that both know.

    Looks are the host's; a switch is a slower verification.
    """
    table = steps["table_milliseconds"]
    joined = {
        "draft": table["draft"],
        "verify": table["verify"] + table["switch"],
        "host": table["host"] + table["look"],
    }
    return {part: steps["live_milliseconds"][part] or 0.0 for part in PARTS}, joined


def both(steps: Row, static: Row) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Live, then by the table: this one's parts and the static tree's."""
    return list(zip(by_part(steps), by_part(static), strict=True))


def losses(steps: Row, static: Row) -> list[float]:
    """Of each part, how much more it took over the static tree's than the table says; in shares of
    the static tree's step."""
    extra = [
        [(one[part] - base[part]) / sum(base.values()) for part in PARTS]
        for one, base in both(steps, static)
    ]
    return [live - table for live, table in zip(*extra, strict=True)]
