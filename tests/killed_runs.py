"""Commands in a process of their own that is killed (kill -9) at a chosen moment.

The process is forked off a server that has everything imported, so it costs no start-up. Faults
are put into it from here; the product knows nothing of them.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import safetensors.numpy
import safetensors.torch
import torch

from entmtp.cli.app import run_command
from entmtp.train.answers import AnswerConfig
from entmtp.train.features import FeatureConfig

SMALL_STAGES = {
    "entmtp.cli.train_heads.AnswerConfig": partial(AnswerConfig, batch_size=4),
    "entmtp.train.pipeline.FeatureConfig": partial(FeatureConfig, rows_per_shard=4),
}
"""So that a few rows are several batches of answers and several shards."""


class Fault(NamedTuple):
    """The call of `name` at which the process dies."""

    name: str
    """Module, then a colon, then what is looked up in it."""
    call: int
    """The first is 1."""
    how: str
    """`before` it; in the `middle` of the file that it writes; right `behind` it."""


def run_small(arguments: Sequence[str]) -> int:
    """`entmtp` with small stages, to the end."""
    with ExitStack() as patches:
        for name, value in SMALL_STAGES.items():
            patches.enter_context(patch(name, value))
        return run_command(arguments)


def run_killed(arguments: Sequence[str], fault: Fault) -> None:
    """`entmtp` with small stages, up to a fault that must come."""
    kill_in(partial(run_small, list(arguments)), fault)


def kill_in(task: Callable[[], object], fault: Fault) -> None:
    """Anything that can be pickled, up to a fault that must come."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["killed_runs", "entmtp.cli.train_heads"])
    process = context.Process(target=_run, args=(task, fault))
    # The server must find the same packages as this process, before it loads any.
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
        process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL, f"{fault} did not come: {process.exitcode}"


def _run(task: Callable[[], object], fault: Fault) -> None:
    torch.set_num_threads(1)
    module, _, name = fault.name.partition(":")
    owner: Any = import_module(module)
    *parents, last = name.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    with patch.object(owner, last, _deadly(getattr(owner, last), fault)):
        task()


def _deadly(function: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < fault.call:
            return function(*args, **kwargs)
        if fault.how == "middle":
            _write_half(function, args)
        elif fault.how == "behind":
            function(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    return call


def _write_half(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Half of what `torch.save(state, path)` or `save_file(tensors, path)` would write."""
    content, path = args[0], Path(args[1])
    if function in (safetensors.torch.save_file, safetensors.numpy.save_file):
        room = sys.modules[function.__module__]
        whole = room.save(content)
    else:
        memory = io.BytesIO()
        function(content, memory)
        whole = memory.getvalue()
    path.write_bytes(whole[: len(whole) // 2])
