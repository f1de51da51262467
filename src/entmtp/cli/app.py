"""`entmtp`: finds the verb, runs it, and turns what goes wrong into a line and an exit code.

Exit codes: 0 fine · 1 output that should be identical was not · 2 wrong use or bad input · 130
interrupted · 143 terminated.

A verb is a file in this folder and a line in `VERBS`. The file holds either a function `run`, whose
parameters are the flags and whose docstring is the help, or a `typer.Typer` called `app` for a verb
with verbs of its own. Only the wanted verb's file is imported: help must not wait for torch.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import NoReturn

import typer

from entmtp.cli.collection import for_one_command, no_collection
from entmtp.errors import EntmtpError

VERBS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "demo": ("demo", "The main job: plain, Medusa and Hydra side by side on real prompts."),
        "bench": ("bench", "Every method beside plain decoding, by source and with intervals."),
        "generate": ("generate", "One answer, as it comes."),
        "chat": ("chat", "A conversation in the terminal."),
        "verify": ("verify", "Is speculative output your model's own? Every token is compared."),
        "fetch": ("fetch", "Bring the embedded model or a benchmark's prompts into the cache."),
        "train-heads": ("train_heads", "Draft heads for a model, by self-distillation."),
        "calibrate": ("calibrate", "A bank of trees for a model, heads, a workload, this machine."),
        "convert": ("convert", "Heads and trees to and from the forms of other programs."),
        "tree": ("tree", "Look at draft trees and convert them."),
        "trace": ("trace", "Look at the decisions that a run wrote down."),
    }
)
"""Verb to the name of its file and what it does in one line."""

_CHATTY = ("torchao", "torch.utils._pytree")
"""Where torchao is installed, these tell every user of `transformers` about CUDA libraries."""
BAD_USE = 2
INTERRUPTED = 130
TERMINATED = 143


def main() -> NoReturn:
    """The entry point of the `entmtp` command."""
    for_one_command()
    # Unwinding, instead of dying on the spot, removes half-made files.
    signal.signal(signal.SIGTERM, _terminate)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.ERROR)
    # Python has no stream for what the shell closed (`>&-`).
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.exit(run_command(sys.argv[1:]))


def run_command(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    arguments = list(arguments) or ["--help"]
    try:
        code = build(arguments[0])(args=arguments, prog_name="entmtp", standalone_mode=False)
    except EntmtpError as error:
        return _complain(str(error))
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "entmtp"
        # What pydantic puts in front of a check's own words, and a full stop before the brackets.
        message = error.format_message().replace(": Value error, ", ": ").rstrip(".")
        return _complain(f"{message} (see `{command} --help`)")
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted")
        return INTERRUPTED
    except SystemExit as error:
        # Typer makes an exit of a broken pipe, with the code of a fault.
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        return _stop_writing(0)
    except BrokenPipeError:
        return _stop_writing(0)
    except OSError as error:
        if error.errno is None:
            raise
        where = error.filename or "standard output or a file"
        reason = error.strerror or str(error)
        code = _complain(f"cannot use {where}: {reason}; check the path, its rights and the space")
        return code if error.filename else _stop_writing(code)
    except MemoryError as error:
        return _complain(f"out of memory ({error}); use fewer tokens, a smaller dtype or model")
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's: naming it would import torch
            raise
        return _complain(f"out of memory: {error}; use fewer tokens, a smaller dtype or model")
    if code == INTERRUPTED:  # what Typer makes of Ctrl-C inside a verb
        _complain("interrupted")
    return code if isinstance(code, int) else 0


def build(wanted: str) -> typer.Typer:
    """The command tree, in which only the verb `wanted` is more than its name and help."""
    app = typer.Typer(
        name="entmtp",
        help="Faster generation with exactly the output that the model would have had anyway.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    # With a callback, a single verb stays a verb instead of becoming the command itself.
    app.callback()(_nothing)
    for verb, (file, summary) in VERBS.items():
        if verb != wanted:
            app.command(verb, help=summary)(_nothing)
            continue
        with no_collection():
            module = import_module(f"entmtp.cli.{file}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=verb, help=summary)
        else:
            app.command(verb, short_help=summary)(module.run)
    return app


def _nothing() -> None:
    """Stands for a verb that is only listed."""


def _stop_writing(code: int) -> int:
    """The reader has enough (`| head`), or the disk. Python would complain again at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _complain(message: str) -> int:
    print(f"entmtp: {' '.join(message.split())}", file=sys.stderr)
    return BAD_USE


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(TERMINATED)
