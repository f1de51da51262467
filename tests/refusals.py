"""How the command refuses: exit code 2, one line on standard error, nothing on standard output."""

from __future__ import annotations

import pytest

from entmtp.cli.app import run_command

Capture = pytest.CaptureFixture[str]


def one_line(arguments: list[str], capsys: Capture) -> str:
    """The line with which a command is refused."""
    assert run_command(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("entmtp: ")
    return err
