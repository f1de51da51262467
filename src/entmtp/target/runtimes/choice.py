"""What `auto` picks: the fastest of the runtimes that are ready, by a short probe that is kept.

Knows: candidates by their names, how to time a step, and where the times are kept. Does not know:
how a runtime works or whether it fits a model.

Timed are steps of 1 row (plain decoding) and of 8 (a small tree), by turns, so that a busy machine
is unkind to all of them alike. A turn begins with a step that does not count: threads of the one
before may still be waiting busily for work. The smallest sum of the two medians wins.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from time import perf_counter, sleep

import torch

from entmtp.data.cache import Progress, cache_dir, is_complete, new_folder, write_manifest
from entmtp.data.strict_json import number, parse_json
from entmtp.errors import EntmtpError
from entmtp.target.masks import causal_among
from entmtp.target.model import TargetModel
from entmtp.target.runtimes.packages import machine

ROWS = (1, 8)
"""Of the steps that are timed."""
_ROUNDS = 5
_CONTEXT = 64
"""Tokens behind which they are timed."""
_PAUSE = 0.02
"""Seconds in front of a turn."""
_TIMES = "times.json"
_RECIPE = "2"
_PACKAGES = ("torch", "transformers", "openvino")

Times = dict[str, list[float]]
"""Seconds of a step by runtime, for each of `ROWS`."""

_log = logging.getLogger(__name__)


def fastest(
    candidates: Mapping[str, Callable[[], TargetModel]],
    fingerprint: str,
    number_format: str,
    progress: Progress,
) -> TargetModel:
    """The candidate whose steps take the least time, made; what cannot be made is said aloud.

    Args:
        candidates: by name, in order of preference where there is nothing to compare; at least one.
        fingerprint: of the weights that the times are for.

    Raises:
        EntmtpError: none of them can be made.
    """
    source = _source(candidates, fingerprint, number_format)
    folder = cache_dir() / f"probe-{hashlib.sha256(repr(source).encode()).hexdigest()[:16]}"
    times = _stored(folder, source)
    made: dict[str, TargetModel] = {}
    names = list(candidates) if times is None else sorted(times, key=lambda name: sum(times[name]))
    failure: EntmtpError | None = None
    for name in names:
        try:
            made[name] = candidates[name]()
        except EntmtpError as error:
            failure = error
            _log.warning("falling back from runtime %s: %s", name, error)
            continue
        if times is not None:
            progress(f"runtime {name}: {_said(times, name)}, as probed before")
            return made[name]
    if failure is not None and not made:
        raise failure
    return _probed(made, folder, source, progress)


def _probed(
    made: Mapping[str, TargetModel], folder: Path, source: dict[str, str], progress: Progress
) -> TargetModel:
    """The fastest of these, by a probe; its times are kept if it compared all candidates."""
    if len(made) == 1:
        ((name, target),) = made.items()
        progress(f"runtime {name}: nothing else is ready")
        return target
    progress(f"probing the runtimes {', '.join(made)}")
    times = probe(made)
    name = min(times, key=lambda each: sum(times[each]))
    if source["candidates"] == " ".join(made):
        with new_folder(folder, source) as part:
            (part / _TIMES).write_text(json.dumps(times), encoding="utf-8")
            write_manifest(part, source)
    progress(f"runtime {name}: {_said(times, name)}")
    return made[name]


@torch.inference_mode()
def probe(targets: Mapping[str, TargetModel]) -> Times:
    """Median seconds of a step on each target, for each of `ROWS`, and one row of logits."""
    steps = {name: _steps(target) for name, target in targets.items()}
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in ROWS] for name in targets}
    for _ in range(_ROUNDS):
        for name, by_rows in steps.items():
            with targets[name].at_work():
                sleep(_PAUSE)
                by_rows[0]()
                for place, step in enumerate(by_rows):
                    started = perf_counter()
                    step()
                    seconds[name][place].append(perf_counter() - started)
    return {name: [median(each) for each in by_rows] for name, by_rows in seconds.items()}


def _steps(target: TargetModel) -> list[Callable[[], None]]:
    """A step of each of `ROWS` behind the same context, run once already."""
    target.warm_up(ROWS)
    cache = target.new_cache(1, _CONTEXT + max(ROWS))
    ids = torch.arange(_CONTEXT, device=target.device)[None] % target.vocab_size
    for _ in target.prefill(ids, cache):
        pass

    def step_of(rows: int) -> Callable[[], None]:
        among = causal_among(1, rows, target.device)
        positions = _CONTEXT + torch.arange(rows, device=target.device)[None]

        def step() -> None:
            hidden = target.forward(ids[:, :rows], positions, among, cache)
            target.logits(hidden[:, -1]).argmax().item()  # waits for the device

        step()
        return step

    return [step_of(rows) for rows in ROWS]


def _source(
    candidates: Mapping[str, object], fingerprint: str, number_format: str
) -> dict[str, str]:
    """All that the times depend on."""
    source = {
        "candidates": " ".join(candidates),
        "model": fingerprint,
        "number_format": number_format,
        "machine": machine(),
        "threads": str(torch.get_num_threads()),
        "recipe": _RECIPE,
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            source[package] = version(package)
    return source


def _stored(folder: Path, source: dict[str, str]) -> Times | None:
    """What an earlier probe found; None where there was none or it cannot be read."""
    if not is_complete(folder, source):
        return None
    try:
        times = parse_json((folder / _TIMES).read_text(encoding="utf-8"))
        found = {name: list(map(number, times[name])) for name in source["candidates"].split()}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if all(len(each) == len(ROWS) for each in found.values()) else None


def _said(times: Times, winner: str) -> str:
    """Its times, then those of the others."""

    def line(name: str) -> str:
        return " and ".join(f"{1000 * seconds:.3g}" for seconds in times[name])

    others = ", ".join(f"{name} {line(name)}" for name in times if name != winner)
    rows = " and ".join(map(str, ROWS))
    return f"{line(winner)} ms for {rows} rows ({others})"
