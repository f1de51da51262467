"""The command: help without torch, and one line with the right code when something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from entmtp.cli import app, fetch
from entmtp.cli.app import VERBS, run_command
from entmtp.data.cache import CACHE_VARIABLE
from entmtp.errors import BadInput
from entmtp.target.runtimes.native.library import kernels_folder
from refusals import one_line
from runtimes import needs_native
from saved import save_random_heads

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A verb `act` of which the test decides what it does."""
    module = SimpleNamespace(run=lambda: None)
    monkeypatch.setattr(app, "VERBS", {"act": ("act", "Act.")})
    monkeypatch.setattr(app, "import_module", lambda _: module)
    return module


def raises(error: BaseException) -> object:
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_help_lists_every_verb(arguments: list[str], capsys: Capture) -> None:
    assert run_command(arguments) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_has_help(name: str, capsys: Capture) -> None:
    assert run_command([name, "--help"]) == 0
    assert f"entmtp {name}" in capsys.readouterr().out


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys, entmtp.cli.app as a; a.run_command(['--help']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.fixture
def cache_with_kernels(tmp_path: Path) -> Path:
    """A cache folder of the test's own, in which nothing is remembered of any model."""
    folder = tmp_path / "cache"
    if (kernels := kernels_folder()).is_dir():  # or they are compiled once more
        ignored = shutil.ignore_patterns("checked-*")
        shutil.copytree(kernels, folder / kernels.name, ignore=ignored)
    return folder


@needs_native
@pytest.mark.parametrize("kind", [None, "hydra++"])
def test_a_second_start_does_not_wait_for_what_is_not_used(
    kind: str | None, model_folder: Path, tmp_path: Path, cache_with_kernels: Path
) -> None:
    """It imports no other runtime, compiler or `transformers`, and answers as the first."""
    unused = {"openvino", "matplotlib", "transformers", "torch._dynamo", "sympy"}
    code = (
        "import sys, entmtp.cli.app as a; code = a.run_command(sys.argv[1:]);"
        f" print(code, sorted({unused} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, "generate", "Hello", "--max-tokens", "4"]
    command += ["--model", str(model_folder), "--runtime", "native", "--dtype", "int8"]
    if kind is not None:
        save_random_heads(tmp_path / "heads", kind)
        command += ["--heads", str(tmp_path / "heads")]
    environment = {**os.environ, CACHE_VARIABLE: str(cache_with_kernels)}
    answers = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, env=environment, check=True)
        answer, _, said = done.stdout.strip().rpartition(b"\n")
        answers.append((answer, said.decode()))
    (first, imported), (second, nothing) = answers
    assert "'transformers'" in imported
    assert nothing == "0 []"
    assert first == second


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "No such option: --nonsense"),
        (["fetch", "--nonsense"], "(see `entmtp fetch --help`)"),
        (["fetch", "a", "b"], "unexpected extra argument"),
        (["fetch", "nonsense"], "there is smollm2-135m, humaneval"),
    ],
)
def test_wrong_use_is_one_line_and_2(arguments: list[str], said: str, capsys: Capture) -> None:
    assert said in one_line(arguments, capsys)


def test_bad_input_is_one_line_and_2(verb: SimpleNamespace, capsys: Capture) -> None:
    verb.run = raises(BadInput("a message\n  that was wrapped"))
    assert run_command(["act"]) == 2
    assert capsys.readouterr().err == "entmtp: a message that was wrapped\n"


def test_interrupted_is_130(verb: SimpleNamespace, capsys: Capture) -> None:
    verb.run = raises(KeyboardInterrupt())
    assert run_command(["act"]) == 130
    assert capsys.readouterr().err == "entmtp: interrupted\n"


def test_a_verb_may_choose_its_code(verb: SimpleNamespace) -> None:
    verb.run = raises(typer.Exit(1))
    assert run_command(["act"]) == 1


def test_a_fault_of_ours_is_not_hidden(verb: SimpleNamespace) -> None:
    verb.run = raises(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        run_command(["act"])


def test_a_verb_with_verbs_of_its_own(verb: SimpleNamespace, capsys: Capture) -> None:
    verb.app = typer.Typer()
    verb.app.callback()(lambda: None)
    verb.app.command("show")(lambda: typer.echo("shown"))
    assert run_command(["act", "show"]) == 0
    assert capsys.readouterr().out == "shown\n"


def test_fetch_json_is_the_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(fetch, "fetch_humaneval", lambda progress: progress("busy") or tmp_path)
    assert run_command(["fetch", "humaneval", "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["path"] == str(tmp_path)
    assert err == "busy\n"


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_fetch_leaves_nothing(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    """Stopped in the middle of a download that never ends."""
    slow = tmp_path / "python"
    running = tmp_path / "running"
    slow.write_text(f"#!/bin/sh\n: > {running}\nexec sleep 60\n")
    slow.chmod(0o755)
    cache = tmp_path / "cache"
    script = (  # which a shell that started the tests in the background would leave deaf
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from entmtp.cli.app import main;"
        f"sys.executable = {str(slow)!r}; sys.argv[1:] = ['fetch', 'humaneval']; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "ENTMTP_CACHE": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    # Not before the download is a process: between the two nobody would end it.
    while not running.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(sent)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in err
    assert list(cache.iterdir()) == []


TOO_LONG = "x" * 5000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "x", "--model", TOO_LONG], "File name too long"),
        (["generate", "x", "--heads", TOO_LONG], "File name too long"),
        (["demo", "--prompts", TOO_LONG], "File name too long"),
        (["convert", "heads", "hydra", TOO_LONG], "File name too long"),
        (["generate", "x", "--model", ""], "no model ''"),
        (["generate", "x", "--heads", ""], "name of the draft heads is empty"),
        (["generate", "x", "--heads", "hydra", "--tree", ""], "no tree named ''"),
        (["demo", "--hydra", ""], "name of the draft heads is empty"),
        (["generate", "x", "--ban", "\udcff"], "banned holds '\\udcff', which is not UTF-8"),
        (["generate", "x", "--stop", "\udcff"], "stop holds '\\udcff', which is not UTF-8"),
    ],
)
def test_names_that_lead_nowhere_are_one_line_and_2(
    arguments: list[str], said: str, capsys: Capture
) -> None:
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ""


def test_a_file_that_cannot_be_used_is_named(verb: SimpleNamespace, capsys: Capture) -> None:
    verb.run = raises(PermissionError(13, "Permission denied", "a b"))
    assert run_command(["act"]) == 2
    assert capsys.readouterr().err == (
        "entmtp: cannot use a b: Permission denied; check the path, its rights and the space\n"
    )
    verb.run = raises(OSError("a library of ours is missing"))
    with pytest.raises(OSError, match="is missing"):
        run_command(["act"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
@pytest.mark.parametrize(
    ("shell", "code", "said"),
    [
        ("{} | head -c 3", 0, ""),
        ("{} > /dev/full", 2, "No space left on device; check the path, its rights and the space"),
        ("{} >&-", 0, ""),
    ],
)
def test_an_output_that_takes_no_more(shell: str, code: int, said: str) -> None:
    """`pipefail` gives the code of the command in front of the pipe."""
    script = "from entmtp.cli import app, tree;tree.draw_tree = lambda _: 'x' * 10**6; app.main()"
    command = f'"{sys.executable}" -c "{script}" tree show root'
    line = f"set -o pipefail; {shell.format(command)}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert said in done.stderr
    assert done.stderr.count("\n") == bool(said)
