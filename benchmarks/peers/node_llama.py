"""llama.cpp's own plain decoding, in a process beside this one, by token ids.

Knows: the npm package `node-llama-cpp`, which carries prebuilt CPU back-ends, how it is brought
into the cache, and the lines that `node_llama.mjs` takes and gives. Does not know: prompts, ratios.

Of the package only the binaries for this platform are brought (about 80 MB), with no install
scripts: nothing is built, nothing of it is run but by `node_llama.mjs`. Times are of the binding's
own generator, one token after the other: evaluation, greedy sampling and the way to JavaScript.
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from entmtp.data.cache import cache_dir, is_complete, new_folder, write_manifest
from entmtp.errors import BadInput, FetchError

VERSION = "3.21.1"
_SCRIPT = Path(__file__).with_name("node_llama.mjs")
_PLATFORMS = {
    ("linux", "x86_64"): "linux-x64",
    ("linux", "aarch64"): "linux-arm64",
    ("darwin", "arm64"): "mac-arm64-metal",
    ("darwin", "x86_64"): "mac-x64",
}


@dataclass(frozen=True)
class Answer:
    """One greedy continuation, ends of text passed over."""

    token_ids: tuple[int, ...]
    prefill_milliseconds: float
    """The prompt, and the first token"""
    step_milliseconds: tuple[float, ...]
    """Of each token behind the first"""


class LlamaCpp:
    """One model in a process of its own; a context manager that ends the process."""

    def __init__(self, gguf: Path, num_threads: int, context: int) -> None:
        """
        Raises:
            BadInput: no node, or llama.cpp cannot load the file.
        """
        command = ["node", str(_SCRIPT), str(package()), str(gguf), str(num_threads), str(context)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.description: dict[str, Any] = {"package": f"node-llama-cpp@{VERSION}", **self._read()}

    def generate(self, prompt_ids: Sequence[int], count: int) -> Answer:
        """`count` tokens behind a prompt, from an empty cache."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ids": list(prompt_ids), "count": count}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if len(answer["ids"]) != count:
            raise BadInput(f"llama.cpp gave {len(answer['ids'])} of {count} tokens; see its errors")
        return Answer(tuple(answer["ids"]), answer["prefill_ms"], tuple(answer["steps_ms"]))

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.__exit__(kind, error, trace)  # closes what it reads from, and waits

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BadInput(f"llama.cpp ended with exit code {self._process.wait()}; see its errors")
        answer: dict[str, Any] = json.loads(line)
        return answer


def package() -> Path:
    """The folder with `node_modules`; installed on the first call, which needs a network.

    Raises:
        FetchError: there is no npm, no binary for this machine, or no network.
    """
    final, source = cache_dir() / f"node-llama-cpp-{VERSION}", {"version": VERSION}
    if is_complete(final, source):
        return final
    binaries = _PLATFORMS.get((sys.platform, platform.machine()))
    if shutil.which("npm") is None or shutil.which("node") is None or binaries is None:
        raise FetchError("llama.cpp needs node and npm, on Linux or macOS; install them")
    with new_folder(final, source) as folder:
        command = ["npm", "install", "--ignore-scripts", "--omit=optional", "--no-audit"]
        command += ["--no-fund", "--no-save", "--silent", f"--prefix={folder}"]
        command += [f"node-llama-cpp@{VERSION}", f"@node-llama-cpp/{binaries}@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise FetchError(f"npm could not bring node-llama-cpp: {done.stderr.strip()[-300:]}")
        write_manifest(folder, source)
    return final
